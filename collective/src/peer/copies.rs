//! All-reduce by copy engines, between ranks of one process.
//!
//! ```text
//! lane push   for each piece: copies part k of it into a room of rank k, for each other rank k
//! lane sum    for each piece: waits for the parts of the others, folds them and its own in the order of the ranks, and
//!             stores the result in place of all of them
//! lane pull   for each piece: waits for the result of rank k, and copies it back out of the room
//! ```
//!
//! A bucket goes in pieces ([`WorldOptions::piece`](crate::WorldOptions::piece)), so that the three
//! lanes work at the same time. Their streams belong to this transport. The stream that orders the
//! bucket goes before all three, and waits for all three ([`Stream::follow`]). Buckets of a
//! [backward pass](crate::Backward) come straight from the stream of the pass, so the first copies
//! of one run beside the last sums of the one before.
//!
//! Copies between devices are work of copy engines. Only the sums take multiprocessors, as few
//! blocks on a stream of the highest priority.
//!
//! **Rooms.** A rank's memory is used by its own streams only, and peers copy into rooms: buffers
//! of this transport in the memory of the rank that sums. A room goes from rank to rank by value,
//! behind the event of its last use. So the types order all uses of it, no stream waits for an
//! event that nobody has recorded, and whoever fails with a room in hand frees it behind that
//! event. They are allocated for the first sum, and serve all later ones.
//!
//! **The host** waits for the other ranks twice for every [`SLOTS`] pieces: for the rooms that they
//! have filled, and for the results. It never waits for a device.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ops::Range;

use thalweg::{AnyStream, Device, DeviceBuffer, DeviceSlice, Event, LiveBrand, On, PeerBuffer, Stream, StreamOptions};
use thalweg_kernels::collective::reduce_in_place;

use super::Run;
use crate::element::CollectiveElement;
use crate::error::Result;
use crate::rank_handle::RankShared;

/// The pieces under way at once.
const SLOTS: usize = 16;
/// Parts begin at multiples of so many bytes from the start of the elements, as the kernel's
/// accesses do.
const UNIT: usize = 16;
/// The blocks of a sum if the options do not say how many it may take. Each has 1024 threads.
const BLOCKS: u32 = 32;

/// Memory of one rank that another one fills.
type Room = Event<PeerBuffer<u64>>;

/// The streams and rooms of a rank that reduces by copies. They live as long as its communicator.
#[derive(Debug)]
pub(crate) struct Copies {
    push: AnyStream,
    sum: AnyStream,
    pull: AnyStream,
    rooms: Rooms,
}

/// The rooms at other ranks that this one may fill next, by rank, without this one.
#[derive(Debug)]
struct Rooms {
    free: Vec<VecDeque<Room>>,
    /// The words of a room.
    words: usize,
    blocks: u32,
}

/// The elements that are reduced, without the stream that orders them.
struct Memory<T> {
    addr: u64,
    len: usize,
    element: PhantomData<T>,
}

impl<T> Memory<T> {
    fn of<S>(x: &mut DeviceSlice<S, T>) -> Self {
        Self { addr: x.device_ptr(), len: x.len(), element: PhantomData }
    }

    /// The elements of a part, for a stream.
    ///
    /// # Safety
    /// During `'a` the memory is allocated, and stream `L` orders all uses of the part.
    unsafe fn part<'a, L>(&self, part: Range<usize>) -> &'a mut DeviceSlice<L, T> {
        // SAFETY: A part is inside the elements (`Plan::part`). The caller promises the rest.
        unsafe { DeviceSlice::from_raw_mut(self.addr + (part.start * size_of::<T>()) as u64, part.len()) }
    }
}

/// The cuts of the elements: into pieces, and each of these into a part for each rank.
struct Plan {
    len: usize,
    size: usize,
    /// The elements of a piece, and those at whose multiples parts begin.
    piece: usize,
    unit: usize,
}

impl Plan {
    fn new<T>(len: usize, size: usize, bytes: usize) -> Self {
        let unit = UNIT / size_of::<T>();
        Self { len, size, piece: (bytes / UNIT).max(1) * unit, unit }
    }

    fn pieces(&self) -> usize {
        self.len.div_ceil(self.piece)
    }

    /// The elements of a piece that rank `k` reduces.
    fn part(&self, piece: usize, k: usize) -> Range<usize> {
        let start = piece * self.piece;
        let len = self.piece.min(self.len - start);
        let at = |k: usize| if k == self.size { len } else { len * k / self.size / self.unit * self.unit };
        start + at(k)..start + at(k + 1)
    }

    /// The most bytes of a part. It has a unit more than its share at most, and an element more by
    /// rounding.
    fn most(size: usize, bytes: usize) -> usize {
        bytes.max(UNIT).div_ceil(size) + 2 * UNIT
    }
}

/// Calls the function when it is dropped: also on an error and on a panic.
struct Finally<F: FnMut()>(F);

impl<F: FnMut()> Drop for Finally<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

impl Copies {
    /// Makes the streams, and gives every other rank its rooms here.
    pub(crate) fn new<S: LiveBrand>(run: &Run<'_, S>, device: Device) -> Result<Self> {
        let RankShared { size, options, .. } = *run.rank_shared();
        let [push, pull] = [AnyStream::new(device)?, AnyStream::new(device)?];
        let sum = AnyStream::with(device, StreamOptions::default().with_priority(*device.priorities().start()))?;
        let words =
            Plan::most(size, options.piece).div_ceil(size_of::<u64>()).next_multiple_of(UNIT / size_of::<u64>());
        let others = run.rank_shared().others();
        let mut given: Vec<Vec<Room>> = others.iter().map(|_| Vec::with_capacity(SLOTS)).collect();
        sum.enter(|q| {
            for _ in 0..SLOTS {
                let all = q.alloc::<u64>(words * others.len())?;
                for (given, room) in given.iter_mut().zip(all.split_at_lengths(&vec![words; others.len()])?) {
                    given.push(q.record(room)?.map_peer());
                }
            }
            Ok::<_, crate::Error>(())
        })?;
        for (&to, given) in others.iter().zip(given) {
            run.post(to, given);
        }
        let free = others.iter().map(|&from| run.take::<Vec<Room>>(from).map(VecDeque::from)).collect::<Result<_>>()?;
        let blocks = options.ctas.map_or(BLOCKS, |ctas| ctas.most);
        Ok(Self { push, sum, pull, rooms: Rooms { free, words, blocks } })
    }

    /// Reduces elements that the communicator's stream orders.
    pub(crate) fn in_place<S: LiveBrand, T: CollectiveElement>(
        &mut self,
        run: &Run<'_, S>,
        x: &mut DeviceSlice<S, T>,
    ) -> Result<()> {
        let (Self { push, sum, pull, rooms }, s) = (self, run.stream());
        push.enter(|p| {
            sum.enter(|q| {
                pull.enter(|r| {
                    // A stream that does not follow belongs to a driver that runs nothing any more.
                    let _joined = Finally(|| _ = s.follow(p).and(s.follow(q)).and(s.follow(r)));
                    // `r` writes a part only behind its copy by `p`.
                    p.follow(&s).and(q.follow(&s))?;
                    run.turn(p)?;
                    // SAFETY: The streams come after `s`, which orders the elements, and `s` comes
                    // after them before anybody else uses these (`_joined`). They are borrowed
                    // until then.
                    unsafe { rooms.reduce(run, &Memory::of(x), p, q, r) }
                })
            })
        })?;
        run.end(&s)
    }

    /// Reduces a bucket that has just been finished on stream `from`. The event is behind its
    /// reduction, for which the communicator's stream waits, too. That stream does nothing else for
    /// it: what it waits for does not hold the bucket up.
    pub(crate) fn bucket<S: LiveBrand, F: LiveBrand, T: CollectiveElement>(
        &mut self,
        run: &Run<'_, S>,
        from: Stream<F>,
        bucket: On<F, DeviceBuffer<T>>,
    ) -> Result<Event<DeviceBuffer<T>>> {
        let (Self { push, sum, pull, rooms }, s) = (self, run.stream());
        // One event for three streams.
        let (bucket, first, second) = from.record((bucket, from.alloc::<u8>(0)?, from.alloc::<u8>(0)?))?.unzip();
        push.enter(|p| {
            sum.enter(|q| {
                pull.enter(|r| {
                    let mut bucket = r.wait(bucket)?;
                    let reduced = {
                        // As in `in_place`. If it fails, the bucket is dropped on `r`.
                        let _joined = Finally(|| _ = r.follow(p).and(r.follow(q)));
                        drop((p.wait(first)?, q.wait(second)?));
                        run.turn(p)?;
                        // SAFETY: All three streams come after the work on the bucket so far. `r`,
                        // which orders it from here on, comes after the others before anybody else
                        // uses it (`_joined`).
                        unsafe { rooms.reduce(run, &Memory::of(&mut *bucket), p, q, r) }
                    };
                    s.follow(r)?;
                    reduced?;
                    run.end(r)?;
                    Ok(r.record(bucket)?)
                })
            })
        })
    }
}

impl Rooms {
    /// Enqueues the reduction of `x`.
    ///
    /// # Safety
    /// The memory of `x` is allocated until all three streams have passed what this call enqueues,
    /// also if it fails, and nothing else uses it from where they are now until then.
    unsafe fn reduce<S: LiveBrand, P: LiveBrand, Q: LiveBrand, R: LiveBrand, T: CollectiveElement>(
        &mut self,
        run: &Run<'_, S>,
        x: &Memory<T>,
        p: &Stream<P>,
        q: &Stream<Q>,
        r: &Stream<R>,
    ) -> Result<()> {
        let RankShared { rank, size, options, .. } = *run.rank_shared();
        let plan = Plan::new::<T>(x.len, size, options.piece);
        let others = run.rank_shared().others();
        // From the next rank on, so that not all copy to the same one first.
        let turns: Vec<usize> = (0..others.len()).map(|turn| (rank + turn) % others.len()).collect();
        let shape = [rank as u32, size as u32];
        let mut next = 0;
        while next < plan.pieces() {
            let round = next..plan.pieces().min(next + SLOTS);
            next = round.end;
            let rooms = || others.iter().map(|_| Vec::with_capacity(round.len())).collect::<Vec<Vec<Room>>>();

            let mut filled = rooms();
            for piece in round.clone() {
                for &k in &turns {
                    let to = others[k];
                    let Some(room) = self.free[k].pop_front() else { return Err(run.abandoned()) };
                    let mut room = p.wait(room)?;
                    // SAFETY: The caller promises the memory. `r` writes this part only after the
                    // result of `to`, for which `to` waits for this copy.
                    let part = unsafe { x.part::<P>(plan.part(piece, to)) };
                    p.copy_start_to_peer(part.cast(), &mut room)?;
                    filled[k].push(p.record(room)?);
                }
            }
            for (&to, filled) in others.iter().zip(filled) {
                run.post(to, filled);
            }

            let (mut came, mut results) = (taken(run, &others)?, rooms());
            for piece in round.clone() {
                let all = came.iter_mut().flat_map(Iterator::next).map(|room| q.wait(room.map_local()));
                let mut all = On::<Q, DeviceBuffer<u64>>::join(all.collect::<std::result::Result<_, _>>()?)?;
                // SAFETY: The caller promises the memory, and no other stream uses this part.
                let own = unsafe { x.part::<Q>(plan.part(piece, rank)) };
                if !own.is_empty() {
                    reduce_in_place(q, run.op(), self.blocks, shape, own, all.cast_mut())?;
                }
                for (results, room) in results.iter_mut().zip(all.split_at_lengths(&vec![self.words; others.len()])?) {
                    results.push(q.record(room)?.map_peer());
                }
            }
            for (&to, results) in others.iter().zip(results) {
                run.post(to, results);
            }

            let mut back = taken(run, &others)?;
            for piece in round {
                for &k in &turns {
                    let from = others[k];
                    let Some(room) = back[k].next() else { return Err(run.abandoned()) };
                    let room = r.wait(room)?;
                    // SAFETY: The caller promises the memory. The result that `r` waits for is
                    // behind the copy of this part by `p`, and `q` uses another part.
                    let part = unsafe { x.part::<R>(plan.part(piece, from)) };
                    r.copy_start_from_peer(&room, part.cast_mut())?;
                    self.free[k].push_back(r.record(room)?);
                }
            }
        }
        Ok(())
    }
}

/// Takes what every other rank has posted.
fn taken<S: LiveBrand>(run: &Run<'_, S>, others: &[usize]) -> Result<Vec<std::vec::IntoIter<Room>>> {
    others.iter().map(|&from| run.take::<Vec<Room>>(from).map(Vec::into_iter)).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
    use std::time::Duration;

    use thalweg::{AnyStream, At, Device, LiveBrand, Stream, stream_tags};

    use super::{Copies, Plan, SLOTS};
    use crate::{Backend, Comm, Error, Failure, Mean, Result, Sum, WorldOptions, lock, ranks};

    stream_tags!(Compute, Reduce);

    const LONG: Duration = Duration::from_secs(20);

    /// The parts of all pieces are all elements once, each fits a room, and each begins at a
    /// multiple of 16 bytes.
    #[test]
    fn parts_cover_the_elements() {
        for (size, len, bytes) in
            [(2, 0, 64), (2, 1, 64), (3, 1000, 64), (5, 77, 16), (8, 4096, 1 << 20), (8, 9, 1), (7, 100_003, 4096)]
        {
            let plan = Plan::new::<u16>(len, size, bytes);
            let mut end = 0;
            for piece in 0..plan.pieces() {
                for k in 0..size {
                    let part = plan.part(piece, k);
                    assert_eq!(part.start, end, "{size} ranks, {len} elements, piece {piece}, rank {k}");
                    assert!(part.is_empty() || part.start.is_multiple_of(8));
                    assert!(2 * part.len() <= Plan::most(size, bytes), "{part:?} of {size} ranks, {bytes} bytes");
                    end = part.end;
                }
            }
            assert_eq!(end, len);
        }
    }

    /// A gate at which a stream waits. `open` goes with what opens it.
    struct Gate {
        open: Sender<()>,
        opened: Receiver<()>,
    }

    impl Gate {
        fn new() -> Self {
            let (open, opened) = channel();
            Self { open, opened }
        }

        /// Has the stream stand here until it is opened, which fails the test after a time. Waits
        /// until it stands there: the functions of a device that has failed are not called.
        fn hold<S: LiveBrand>(self, stream: &Stream<S>, what: &'static str) -> Sender<()> {
            let (Self { open, opened }, (tell, told)) = (self, channel());
            let hold = move || {
                tell.send(()).unwrap();
                assert!(opened.recv_timeout(LONG).is_ok(), "{what}");
            };
            stream.launch_host(hold).unwrap();
            told.recv_timeout(LONG).unwrap();
            open
        }
    }

    /// Opens a gate once the stream has come here.
    fn opens<S: LiveBrand>(stream: &Stream<S>, gate: Sender<()>) {
        stream.launch_host(move || gate.send(()).unwrap()).unwrap();
    }

    type C<'r> = Comm<At<'r, Reduce>>;

    fn lane<T>(comm: &C<'_>, lane: impl Fn(&Copies) -> &AnyStream, f: impl FnOnce(&AnyStream) -> T) -> T {
        f(lane(lock(&comm.transport.peer().unwrap().copies).as_ref().unwrap()))
    }

    fn own_devices(size: usize) -> Vec<Device> {
        (0..size).map(|_| Device::new_cpu().unwrap()).collect()
    }

    fn options(piece: usize) -> WorldOptions {
        WorldOptions::default().with_backend(Backend::Peer).with_piece(piece).with_timeout(LONG)
    }

    /// The sum of a bucket stands until the next bucket has been copied, the way back of both until
    /// both are summed, and the communicator's stream until both are back.
    #[test]
    fn copies_of_a_bucket_run_beside_the_sum_of_the_one_before() {
        let all = Barrier::new(2);
        let ended = ranks(&own_devices(2), options(64), |rank, world| -> Result<()> {
            let (compute, reduce) = (rank.stream::<Compute>()?, rank.stream::<Reduce>()?);
            let mut comm = world.comm(reduce)?;
            let bucket = |v: f32| -> Result<_> {
                let mut x = compute.alloc::<f32>(100)?;
                compute.fill(&mut x, v * (1 + rank.index()) as f32)?;
                Ok(x)
            };
            let mut warm = reduce.alloc_zeroed::<f32>(1)?;
            comm.all_reduce_in_place(Sum, &mut warm)?;
            comm.synchronize()?;
            all.wait();
            let held =
                "a bucket waits for the sum of the one before, or for its way back, or for the communicator's stream";
            let summed = lane(&comm, |c| &c.sum, |sum| sum.enter(|q| Gate::new().hold(q, held)));
            let pulled = lane(&comm, |c| &c.pull, |pull| pull.enter(|r| Gate::new().hold(r, held)));
            let joined = Gate::new().hold(&reduce, held);
            let first = comm.all_reduce_bucket(Sum, compute, bucket(1.0)?)?.expect("they go by copies");
            let second = comm.all_reduce_bucket(Sum, compute, bucket(10.0)?)?.expect("they go by copies");
            lane(&comm, |c| &c.push, |push| push.enter(|p| opens(p, summed)));
            lane(&comm, |c| &c.sum, |sum| sum.enter(|q| opens(q, pulled)));
            let (first, second) = (compute.wait(first)?, compute.wait(second)?);
            opens(&compute, joined);
            assert_eq!(compute.read_blocking(&first)?, [3.0; 100]);
            assert_eq!(compute.read_blocking(&second)?, [30.0; 100]);
            compute.synchronize()?;
            comm.synchronize()
        });
        ended.into_iter().for_each(|ended| ended.unwrap());
    }

    /// The rooms of a piece serve again once its result is out of them: while the way back stands,
    /// the copies of as many pieces as there are rooms are done, and not one more.
    #[test]
    fn rooms_are_filled_again_once_they_are_empty() {
        let all = Barrier::new(2);
        let ended = ranks(&own_devices(2), options(16), |rank, world| -> Result<()> {
            let reduce = rank.stream::<Reduce>()?;
            let mut comm = world.comm(reduce)?;
            let mut warm = reduce.alloc_zeroed::<f32>(1)?;
            comm.all_reduce_in_place(Sum, &mut warm)?;
            comm.synchronize()?;
            all.wait();
            let way_back = lane(&comm, |c| &c.pull, |pull| pull.enter(|r| Gate::new().hold(r, "nobody opens it")));
            let values: Vec<f32> = (0..4 * 3 * SLOTS).map(|i| i as f32).collect();
            let mut x = reduce.upload_blocking(&values)?;
            comm.all_reduce_in_place(Mean, &mut x)?;
            let (tell, told) = channel();
            lane(&comm, |c| &c.push, |push| push.enter(|p| opens(p, tell)));
            assert_eq!(told.recv_timeout(Duration::from_millis(50)), Err(RecvTimeoutError::Timeout), "a room was full");
            way_back.send(()).unwrap();
            assert_eq!(reduce.read_blocking(&x)?, values);
            told.recv_timeout(LONG).unwrap();
            Ok(())
        });
        ended.into_iter().for_each(|ended| ended.unwrap());
    }

    /// If an operation fails on its way, the communicator's stream still comes after what was
    /// enqueued for it. So the elements are not freed while they are copied.
    #[test]
    fn elements_outlive_the_copies_of_an_operation_that_fails() {
        let (outside, all) = (Device::new_cpu().unwrap(), Barrier::new(2));
        let ended = ranks(&own_devices(2), options(1 << 20), |rank, world| -> Result<()> {
            let reduce = rank.stream::<Reduce>()?;
            let mut comm = world.comm(reduce)?;
            let mut x = reduce.alloc_zeroed::<u32>(1000)?;
            comm.all_reduce_in_place(Sum, &mut x)?;
            comm.synchronize()?;
            all.wait();
            if rank.index() == 1 {
                return Ok(());
            }
            let copied = lane(&comm, |c| &c.push, |push| push.enter(|p| Gate::new().hold(p, "the test opens it")));
            let failed = comm.all_reduce_in_place(Sum, &mut x).unwrap_err();
            assert!(matches!(&failed, Error::Failed(Failure::LeftEarly { rank: 1, seq: 2, .. })), "{failed}");
            drop(x); // a free on the stream
            let other = AnyStream::new(outside)?;
            let (tell, told) = channel();
            other.enter(|o| o.follow(&reduce).map(|()| opens(o, tell)))?;
            assert_eq!(told.recv_timeout(Duration::from_millis(50)), Err(RecvTimeoutError::Timeout), "freed too early");
            copied.send(()).unwrap();
            told.recv_timeout(LONG).unwrap();
            Ok(())
        });
        ended.into_iter().for_each(|ended| ended.unwrap());
    }

    /// Rooms are made once. They are all back after an operation, however many pieces it has.
    #[test]
    fn rooms_come_back() {
        let ended = ranks(&own_devices(3), options(64), |rank, world| -> Result<()> {
            let reduce = rank.stream::<Reduce>()?;
            let mut comm = world.comm(reduce)?;
            for len in [0, 1, 64, 65, 10_000] {
                comm.all_reduce_in_place(Sum, &mut reduce.alloc_zeroed::<u8>(len)?)?;
                let copies = lock(&comm.transport.peer().unwrap().copies);
                let free = &copies.as_ref().unwrap().rooms.free;
                assert!(free.len() == 2 && free.iter().all(|rooms| rooms.len() == SLOTS), "{len}");
            }
            comm.synchronize()
        });
        ended.into_iter().for_each(|ended| ended.unwrap());
    }
}
