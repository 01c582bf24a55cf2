//! Tests of tasks that wait for frames, in order and until they give up.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use testkit::devices::{alone, devices};
use thalweg::{AnyStream, Device, Error, Size};
use thalweg_vision::{Frame, FrameFuture, Pipeline};

use crate::gates::{gated, gpus_and_a_cpu};
use crate::run::given;
use crate::{deep, mixed, noise, panics, small_params, unwrap_all};

/// A waker that says when it is woken.
struct Bell(mpsc::Sender<()>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.send(()).ok();
    }
}

/// A task that waits for a frame, polled by hand.
struct Waiter<'p> {
    future: Option<FrameFuture<'p>>,
    woken: mpsc::Receiver<()>,
    waker: Waker,
}

impl<'p> Waiter<'p> {
    fn new(pipeline: &'p Pipeline, sizes: &'p [Size]) -> Self {
        let (bell, woken) = mpsc::channel();
        Self { future: Some(pipeline.frame_async(sizes)), woken, waker: Waker::from(Arc::new(Bell(bell))) }
    }

    fn poll(&mut self) -> Poll<thalweg::Result<Frame>> {
        Pin::new(self.future.as_mut().expect("it was not dropped")).poll(&mut Context::from_waker(&self.waker))
    }

    fn drop_future(&mut self) {
        self.future = None;
    }

    #[track_caller]
    fn is_woken(&self) {
        self.woken.recv_timeout(Duration::from_secs(30)).expect("the task is woken");
    }

    /// Whether it was woken by now.
    fn was_woken(&self) -> bool {
        self.woken.try_recv().is_ok()
    }

    #[track_caller]
    fn frame(&mut self) -> Frame {
        match self.poll() {
            Poll::Ready(frame) => frame.unwrap(),
            Poll::Pending => panic!("it is this task's turn, and there is a place"),
        }
    }
}

/// Tasks get frames in the order in which they began to wait, one for each batch that is done,
/// dropped ones included; whoever gives up gives its turn to the next, woken or not.
#[test]
fn tasks_wait_for_frames_in_order() {
    let _alone = alone();
    let image = given(&noise(64, 80));
    let sizes = [Size::new(64, 80)];
    for device in gpus_and_a_cpu() {
        let (pipeline, frames, [first, second, third]) = gated::<3>(device, &image);
        for frame in frames {
            drop(pipeline.submit(frame).unwrap());
        }
        let mut waiters: Vec<_> = (0..6).map(|_| Waiter::new(&pipeline, &sizes)).collect();
        assert!(waiters.iter_mut().all(|waiter| waiter.poll().is_pending()), "no place is free on {device}");
        assert!(waiters[1].poll().is_pending(), "it stands where it stood");
        waiters[2].drop_future(); // from the middle

        first.open();
        waiters[0].is_woken();
        assert!(waiters[1].poll().is_pending(), "it is the other's turn on {device}");
        assert!(pipeline.try_frame(&sizes).unwrap().is_none(), "others wait on {device}");
        let mut frame = waiters[0].frame();
        frame.image_mut(0).copy_from_slice(image.rgb());
        assert!(waiters[1].poll().is_pending(), "the other places are taken on {device}");
        assert!(!waiters[1].was_woken() && !waiters[3].was_woken());

        // A task that is woken and then dropped passes the turn on.
        second.open();
        waiters[1].is_woken();
        waiters[1].drop_future();
        waiters[3].is_woken();
        let other = waiters[3].frame();

        // A task that is dropped before it is woken takes nothing with it.
        waiters[4].drop_future();
        third.open();
        waiters[5].is_woken();
        let last = waiters[5].frame();
        assert!(pipeline.try_frame(&sizes).unwrap().is_none(), "there are three on {device}");

        // Frames and tokens give places back as batches do.
        let mut waiters = [(); 3].map(|()| Waiter::new(&pipeline, &sizes));
        assert!(waiters.iter_mut().all(|waiter| waiter.poll().is_pending()));
        drop(other);
        waiters[0].is_woken();
        let other = waiters[0].frame();
        pipeline.recycle(pipeline.submit(frame).unwrap().synchronize().unwrap());
        waiters[1].is_woken();
        let frame = waiters[1].frame();
        // Several places at once: the first takes one and wakes the second.
        let mut more = Waiter::new(&pipeline, &sizes);
        assert!(more.poll().is_pending());
        drop((frame, other, last));
        waiters[2].is_woken();
        assert!(!more.was_woken());
        let _last = waiters[2].frame();
        more.is_woken();
        let _more = more.frame();
        assert!(pipeline.try_frame(&sizes).unwrap().is_some());

        // Wrong sizes are an error at once, and no place in the queue.
        let empty = [Size::new(0, 1)];
        let mut wrong = Waiter::new(&pipeline, &empty);
        assert!(matches!(wrong.poll(), Poll::Ready(Err(Error::Parameter { .. }))));
    }
}

/// A waker whose destructor panics.
struct Mine;

impl Wake for Mine {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Mine {
    fn drop(&mut self) {
        assert!(thread::panicking(), "on purpose");
    }
}

/// The destructor of a waker is code of an executor. If it panics, the place and the queue do not
/// suffer, and neither does the task that happens to drop it.
#[test]
fn a_waker_may_panic_when_it_is_dropped() {
    let _alone = alone();
    let pipeline = deep(devices()[0], small_params(), 1);
    let sizes = [Size::new(4, 4)];
    let polled = || {
        let mut future = pipeline.frame_async(&sizes);
        let mine = Waker::from(Arc::new(Mine));
        assert!(Pin::new(&mut future).poll(&mut Context::from_waker(&mine)).is_pending());
        drop(mine); // The queue holds the last handle.
        future
    };
    let frame = pipeline.frame(&sizes).unwrap();
    let (first, mut second) = (polled(), polled());
    let mut third = Waiter::new(&pipeline, &sizes);
    assert!(third.poll().is_pending());
    drop(first);
    // Another waker takes the place of the one that panics.
    let (bell, woken) = mpsc::channel();
    let bell = Waker::from(Arc::new(Bell(bell)));
    assert!(Pin::new(&mut second).poll(&mut Context::from_waker(&bell)).is_pending());
    drop(frame);
    woken.try_recv().expect("it is the first in the queue");
    let Poll::Ready(frame) = Pin::new(&mut second).poll(&mut Context::from_waker(&bell)) else {
        panic!("it is this task's turn")
    };
    drop(frame.unwrap());
    third.is_woken();
    drop(third.frame());
}

/// Many more requests than places, some of which are given up at some point.
#[test]
fn requests_share_a_pipeline_under_tokio() {
    let _alone = alone();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let images = mixed();
    for &device in devices() {
        let pipeline = deep(device, small_params(), 3);
        let want = unwrap_all(pipeline.run(&images));
        let (pipeline, images) = (Arc::new(pipeline), Arc::new(images.clone()));
        let (in_use, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let request = |i: usize| {
            let (pipeline, images) = (pipeline.clone(), images.clone());
            let (in_use, most) = (in_use.clone(), most.clone());
            async move {
                let image = &images[i % images.len()];
                let sizes = [image.size()];
                let mut waiting = pipeline.frame_async(&sizes);
                if i % 5 == 4 && Pin::new(&mut waiting).poll(&mut Context::from_waker(Waker::noop())).is_pending() {
                    return None; // given up while it waits
                }
                let mut frame =
                    if i % 5 == 4 { pipeline.frame_async(&sizes).await.unwrap() } else { waiting.await.unwrap() };
                most.fetch_max(in_use.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                frame.image_mut(0).copy_from_slice(image.rgb());
                let submitted = pipeline.submit(frame).unwrap();
                if i % 5 == 3 {
                    in_use.fetch_sub(1, Ordering::SeqCst);
                    return None; // given up under way
                }
                let tokens = submitted.await.unwrap();
                tokio::task::yield_now().await;
                let set = tokens.set(0);
                in_use.fetch_sub(1, Ordering::SeqCst);
                drop(tokens);
                Some(set)
            }
        };
        let got = runtime.block_on(async {
            let tasks: Vec<_> = (0..60).map(|i| tokio::spawn(request(i))).collect();
            let mut got = Vec::new();
            for task in tasks {
                got.push(task.await.unwrap());
            }
            got
        });
        assert!(most.load(Ordering::SeqCst) <= 3);
        let mut gave_up_waiting = 0;
        for (i, set) in got.into_iter().enumerate() {
            match i % 5 {
                3 => assert!(set.is_none(), "request {i} was given up under way"),
                4 => gave_up_waiting += u32::from(set.is_none()),
                _ => assert!(set.is_some(), "request {i}"),
            }
            assert!(set.is_none_or(|set| set == want[i % want.len()]), "request {i} on {device}");
        }
        assert!(gave_up_waiting > 0, "some request had to wait on {device}");
    }
}

/// Where the device has failed, nobody waits for places that can never come back.
#[test]
fn a_failed_device_ends_the_wait() {
    let _alone = alone();
    let image = given(&noise(64, 80));
    let device = Device::new_cpu().unwrap();
    let (pipeline, frames, _gates) = gated::<2>(device, &image);
    for frame in frames {
        drop(pipeline.submit(frame).unwrap());
    }
    let sizes = [Size::new(64, 80)];
    let mut tasks = [(); 2].map(|()| Waiter::new(&pipeline, &sizes));
    assert!(tasks.iter_mut().all(|task| task.poll().is_pending()));
    thread::scope(|threads| {
        let thread = threads.spawn(|| pipeline.frame(&sizes).unwrap_err());
        AnyStream::new(device).unwrap().enter(|s| {
            panics(s).unwrap();
            s.synchronize().unwrap_err()
        });
        // The loop takes the tasks by value. So if one of them fails, the others leave the queue,
        // the thread gets its turn, and the test ends.
        for mut task in tasks {
            task.is_woken();
            assert!(matches!(task.poll(), Poll::Ready(Err(Error::Poisoned { .. }))));
        }
        assert!(matches!(thread.join().unwrap(), Error::Poisoned { .. }));
    });
}
