//! A slot: the memory and the stream of a batch, and the way in which its work is enqueued.

use std::sync::{Arc, Mutex};

use thalweg::{
    AnyStream, Brand, DeviceBuffer, Event, Graph, GraphCache, GraphWork, LiveBrand, PinnedBuffer, Resource, Result,
    Returned, Stream, TimedEvent,
};

use super::Place;
use crate::workspace::{Plan, Workspace};
use crate::{PLANES, kernels};

/// The memory and the stream of a batch.
#[derive(Debug, Resource)]
pub(crate) struct Slot {
    /// Empty if the pixels come from the device.
    pub(crate) images: PinnedBuffer<u8>,
    pub(crate) buffers: Buffers,
    #[resource(plain)]
    pub(crate) run: Arc<Run>,
}

/// The memory of a slot that only its stream writes.
#[derive(Debug, Resource)]
pub(crate) struct Buffers {
    pub(crate) rgb: DeviceBuffer<u8>,
    pub(crate) workspace: Workspace,
    pub(crate) results: PinnedBuffer<u32>,
    pub(crate) planes: Option<(DeviceBuffer<f32>, PinnedBuffer<f32>)>,
}

/// The state of a slot beside memory: its stream, and how its work runs.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) stream: AnyStream,
    pub(crate) work: Mutex<Work>,
    pub(crate) plan: Arc<Plan>,
    pub(crate) place: Place,
    /// The pixels come from page-locked memory, and not from the device.
    pub(crate) uploads: bool,
}

/// The way in which the work of a slot is enqueued.
#[derive(Debug)]
pub(crate) enum Work {
    /// Call by call, with a mark after each stage.
    Measured(Vec<TimedEvent>),
    /// Call by call the first time, and then as a graph: one with a download, and one without.
    Graphs(GraphCache<bool, Graph<Slot>>),
}

/// The work of a slot, with a download of the results or without.
struct Batch {
    downloads: bool,
}

impl GraphWork<Slot> for Batch {
    fn enqueue<S: Brand>(&self, stream: &Stream<S>, slot: &mut SlotOn<S>) -> Result<()> {
        slot.enqueue(stream, self.downloads, || Ok(()))
    }
}

/// A slot whose images the host may write.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) images: PinnedBuffer<u8>,
    /// For a new slot, the stream may still be preparing them.
    pub(crate) buffers: Event<Buffers>,
    pub(crate) run: Arc<Run>,
}

impl Draft {
    pub(crate) fn plan(&self) -> &Plan {
        &self.run.plan
    }
}

impl From<Slot> for Draft {
    fn from(Slot { images, buffers, run }: Slot) -> Self {
        Self { images, buffers: Event::ready(buffers), run }
    }
}

impl Slot {
    pub(crate) fn plan(&self) -> &Plan {
        &self.run.plan
    }

    /// The results, which came back from the device.
    pub(crate) fn results(&self) -> &[u32] {
        &self.buffers.results
    }

    /// The texture array of image `i`, if the pipeline makes it.
    pub(crate) fn planes(&self, i: usize) -> Option<&[f32]> {
        let (_, host) = self.buffers.planes.as_ref()?;
        let pixels = |i: usize| self.plan().layout.byte_range(i).len() / 3;
        let start = PLANES * (0..i).map(pixels).sum::<usize>();
        Some(&host[start..start + PLANES * pixels(i)])
    }
}

impl<S: LiveBrand> SlotOn<S> {
    /// Enqueues a batch in the way that `work` says.
    pub(crate) fn send(mut self, stream: &Stream<S>, work: &mut Work, downloads: bool) -> Result<Self, Returned<Self>> {
        match work {
            Work::Graphs(graphs) => graphs.enqueue(stream, downloads, self, &Batch { downloads }),
            Work::Measured(marks) => match self.measure(stream, marks, downloads) {
                Ok(()) => Ok(self),
                Err(error) => Err(Returned { error, value: self }),
            },
        }
    }

    fn measure(&mut self, stream: &Stream<S>, marks: &mut Vec<TimedEvent>, downloads: bool) -> Result<()> {
        marks.clear();
        marks.push(stream.timestamp()?);
        self.enqueue(stream, downloads, || {
            marks.push(stream.timestamp()?);
            Ok(())
        })
    }
}

impl<S: Brand> SlotOn<S> {
    /// Enqueues a batch: upload (if there is one), all stages, and the textures and the download of
    /// results that the host gets. Calls `mark` after each of them.
    fn enqueue(&mut self, stream: &Stream<S>, downloads: bool, mut mark: impl FnMut() -> Result<()>) -> Result<()> {
        let BuffersOn { rgb, workspace, results, planes } = &mut self.buffers;
        if self.run.uploads {
            stream.copy_to_device(&self.images, rgb)?;
        }
        mark()?;
        workspace.enqueue_marked(stream, rgb, &mut mark)?;
        if let (Some((planes, _)), true) = (&mut *planes, downloads) {
            let plan = &workspace.plan;
            let [y, x] = plan.params.fixation;
            let mut rest = &mut **planes;
            for i in 0..plan.layout.images() as usize {
                let [height, width] = plan.layout.size(i);
                let image = plan.layout.byte_range(i);
                let (own, others) = rest.split_at_mut(PLANES * image.len() / 3)?;
                kernels::textures(stream, height, width, y, x, rgb.slice(image)?, own)?;
                rest = others;
            }
        }
        mark()?;
        if downloads {
            stream.copy_to_host(&workspace.results, results)?;
            if let Some((planes, host)) = planes {
                stream.copy_to_host(planes, host)?;
            }
        }
        mark()
    }
}
