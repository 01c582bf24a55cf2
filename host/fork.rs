//! Branches of a capture: several streams in one graph.

use std::fmt;
use std::ops::Deref;

use crate::brand::Brand;
use crate::error::Result;
use crate::graph::Capture;
use crate::resource::{LeafResource, On, Token};
use crate::runtime::stream::StreamInner;
use crate::stream::Stream;

/// The arguments that a branch of a capture can borrow: references to buffers of the capture, and
/// tuples and vectors of those.
///
/// A `&mut` reference lends a buffer to one branch, which may write it. A `&` reference lends it
/// for reading, also to both branches.
pub trait BranchArgs<'g>: sealed::Sealed {
    /// The same buffers, ordered by the branch.
    type Branch<'f>;
    #[doc(hidden)]
    fn __lend<'f>(self, branch: Stream<Capture<'f>>, token: Token) -> Self::Branch<'f>;
}

mod sealed {
    pub trait Sealed {}
}

/// A buffer that a branch of a capture only reads. It dereferences to the buffer.
pub struct BranchRef<S: Brand, L: LeafResource>(On<S, L>);

impl<S: Brand, L: LeafResource> Deref for BranchRef<S, L> {
    type Target = On<S, L>;
    fn deref(&self) -> &On<S, L> {
        &self.0
    }
}

impl<S: Brand, L: LeafResource> fmt::Debug for BranchRef<S, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BranchRef")
    }
}

impl<L: LeafResource> sealed::Sealed for &mut On<Capture<'_>, L> {}
impl<'g, L: LeafResource> BranchArgs<'g> for &mut On<Capture<'g>, L> {
    type Branch<'f> = On<Capture<'f>, L>;
    fn __lend<'f>(self, branch: Stream<Capture<'f>>, token: Token) -> On<Capture<'f>, L> {
        On::alias(self.leaf().__copy(token), branch)
    }
}

impl<L: LeafResource> sealed::Sealed for &On<Capture<'_>, L> {}
impl<'g, L: LeafResource> BranchArgs<'g> for &On<Capture<'g>, L> {
    type Branch<'f> = BranchRef<Capture<'f>, L>;
    fn __lend<'f>(self, branch: Stream<Capture<'f>>, token: Token) -> BranchRef<Capture<'f>, L> {
        BranchRef(On::alias(self.leaf().__copy(token), branch))
    }
}

impl<L: sealed::Sealed> sealed::Sealed for Vec<L> {}
impl<'g, L: BranchArgs<'g>> BranchArgs<'g> for Vec<L> {
    type Branch<'f> = Vec<L::Branch<'f>>;
    fn __lend<'f>(self, branch: Stream<Capture<'f>>, _: Token) -> Self::Branch<'f> {
        self.into_iter().map(|lent| lent.__lend(branch, Token::new())).collect()
    }
}

macro_rules! tuples {
    ($(($($name:ident)*))*) => {$(
        impl<$($name: sealed::Sealed),*> sealed::Sealed for ($($name,)*) {}
        impl<'g, $($name: BranchArgs<'g>),*> BranchArgs<'g> for ($($name,)*) {
            type Branch<'f> = ($($name::Branch<'f>,)*);
            #[allow(non_snake_case, clippy::unused_unit, unused_variables)]
            fn __lend<'f>(self, branch: Stream<Capture<'f>>, _: Token) -> Self::Branch<'f> {
                let ($($name,)*) = self;
                ($($name.__lend(branch, Token::new()),)*)
            }
        }
    )*};
}
tuples! { () (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) }

impl<'g> Stream<Capture<'g>> {
    /// Captures two branches that run side by side: neither waits for the other, and what is
    /// captured after this call waits for both.
    ///
    /// Each branch gets a stream of its own and the buffers that it is lent, whose types name that
    /// stream. So a branch cannot touch a buffer of the other, and nothing can use the buffers
    /// before the join, because they are lent until then. Branches can fork again.
    ///
    /// Pass `&mut *x` to use `x` again after the join.
    ///
    /// ```
    /// use thalweg::{Device, stream_tags};
    ///
    /// stream_tags!(Work);
    /// let work = Device::best()?.stream::<Work>()?;
    /// let buffers = (work.alloc::<u32>(100)?, work.alloc::<u32>(100)?, work.alloc::<u32>(100)?);
    /// let (mut graph, buffers) = work.capture(buffers, |s, (input, left, right)| {
    ///     s.fill(input, 7)?;
    ///     s.fork(
    ///         (&*input, &mut *left),
    ///         (&*input, &mut *right),
    ///         |a, (input, left)| a.copy(input, left), // kernels are launched the same way
    ///         |b, (input, right)| b.copy(input, right),
    ///     )?;
    ///     s.copy(left, input) // after both branches
    /// })?;
    /// assert_eq!(graph.len(), 4);
    /// let (input, _, right) = work.replay(&mut graph, buffers)?;
    /// assert_eq!((work.read_blocking(&input)?, work.read_blocking(&right)?), (vec![7; 100], vec![7; 100]));
    /// # Ok::<(), thalweg::Error>(())
    /// ```
    ///
    /// On the CPU device a replay takes a second queue for the second branch.
    ///
    /// # Errors
    /// A branch returned an error, or the driver cannot fork or join. The capture fails then.
    pub fn fork<A: BranchArgs<'g>, B: BranchArgs<'g>>(
        self,
        first: A,
        second: B,
        on_first: impl for<'f> FnOnce(&Stream<Capture<'f>>, &mut A::Branch<'f>) -> Result<()>,
        on_second: impl for<'f> FnOnce(&Stream<Capture<'f>>, &mut B::Branch<'f>) -> Result<()>,
    ) -> Result<()> {
        // The first branch goes on where this stream is. Nobody else can use this stream for the
        // buffers of the branches meanwhile, because they are lent.
        let joining = Joining::fork(self.inner())?;
        let (here, there) = (Stream::of(self.inner()), Stream::of(joining.branch));
        let mut first = first.__lend(here, Token::new());
        let mut second = second.__lend(there, Token::new());
        let captured = on_first(&here, &mut first).and_then(|()| on_second(&there, &mut second));
        let joined = joining.join();
        captured.and(joined)
    }
}

/// A branch in progress. It always joins, also on an error or a panic, because a capture with a
/// branch that is not joined cannot end.
struct Joining {
    stream: &'static StreamInner,
    branch: &'static StreamInner,
    forked: usize,
    joined: bool,
}

impl Joining {
    fn fork(stream: &'static StreamInner) -> Result<Self> {
        let device = stream.device();
        let branch = device.take_capture_stream()?;
        stream.add_branch(branch); // it is recycled when the capture has ended
        let forked = device.seen(stream.handle().fork(stream.hand.handle(), branch.handle()))?;
        Ok(Self { stream, branch, forked, joined: false })
    }

    fn join(mut self) -> Result<()> {
        self.finish()
    }

    fn finish(&mut self) -> Result<()> {
        self.joined = true;
        let joined = self.stream.handle().join(self.forked, self.branch.handle(), self.branch.hand.handle());
        self.stream.device().seen(joined)
    }
}

impl Drop for Joining {
    fn drop(&mut self) {
        if !self.joined {
            // The panic that came here is what the caller sees.
            let _ = self.finish();
        }
    }
}
