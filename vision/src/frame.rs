//! A frame: the memory of a slot, on loan to whoever writes the images.

use std::fmt;
use std::sync::{Arc, Weak};

use thalweg::Size;

use crate::kernels::BatchLayout;
use crate::slots::{Draft, Slots};

/// Page-locked memory for a batch of images. Write the images, then
/// [`submit`](crate::Pipeline::submit) it. Dropping it gives the memory to a later batch.
pub struct Frame {
    /// `None` once it is submitted.
    draft: Option<Draft>,
    home: Weak<Slots>,
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes: Vec<_> = (0..self.images()).map(|i| self.size(i).sides()).collect();
        f.debug_tuple("Frame").field(&sizes).finish()
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        if let (Some(draft), Some(slots)) = (self.draft.take(), self.home.upgrade()) {
            slots.recycle(draft, None);
        }
    }
}

impl Frame {
    pub(crate) fn new(draft: Draft, home: &Arc<Slots>) -> Self {
        Self { draft: Some(draft), home: Arc::downgrade(home) }
    }

    /// Takes the draft out, and the slots that it belongs to.
    pub(crate) fn submit(mut self) -> (Draft, Weak<Slots>) {
        match self.draft.take() {
            Some(draft) => (draft, std::mem::take(&mut self.home)),
            None => unreachable!("only this and `drop` take it, by value"),
        }
    }

    /// The stream that the work of this frame will run on.
    #[cfg(test)]
    pub(crate) fn stream(&self) -> &thalweg::AnyStream {
        &self.draft().run.stream
    }

    fn draft(&self) -> &Draft {
        match &self.draft {
            Some(draft) => draft,
            None => unreachable!("only `submit` takes it, by value"),
        }
    }

    fn layout(&self) -> &BatchLayout {
        &self.draft().plan().layout
    }

    /// Number of images.
    pub fn images(&self) -> usize {
        self.layout().images() as usize
    }

    /// The size of image `i`.
    ///
    /// # Panics
    /// There is no image `i`.
    pub fn size(&self, i: usize) -> Size {
        self.layout().size(i).into()
    }

    /// The bytes of image `i`, `[H, W, 3]` sRGB. At first they hold what an earlier batch left.
    ///
    /// # Panics
    /// There is no image `i`.
    pub fn image_mut(&mut self, i: usize) -> &mut [u8] {
        let range = self.layout().byte_range(i);
        match &mut self.draft {
            Some(draft) => &mut draft.images[range],
            None => unreachable!("only `submit` takes it, by value"),
        }
    }
}
