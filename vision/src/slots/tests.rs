//! Tests of what only this crate can bring about: a device that cannot say whether a batch is done,
//! and a lock that is held while the process forks.

use std::pin::Pin;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};

use thalweg::{Device, Result, Size};

use super::Slots;
use crate::{Image, Pipeline, PipelineOptions, TokenParams, lock};

impl Slots {
    /// Settles the returning slots as if their device could not say whether they are done.
    fn lose_returning(&self) {
        let numbers: Vec<_> = lock(&self.state).returning.iter().map(|(number, _)| *number).collect();
        numbers.into_iter().for_each(|number| self.settle(number));
    }
}

fn pipeline(depth: usize) -> Result<Pipeline> {
    Pipeline::with_options(Device::new_cpu()?, TokenParams::default(), PipelineOptions::default().with_depth(depth))
}

/// Pixels on the device give the tokens that they give from the host: call by call, captured and
/// replayed, for images of two sizes in turn. What fails comes back with its pixels, and the others
/// go on.
#[test]
fn pixels_on_the_device_give_the_same_tokens() -> Result<()> {
    let device = Device::new_cpu()?;
    let pipeline = Pipeline::new(device, TokenParams::default().with_budget(300))?;
    let picture = |i: u32| {
        let [height, width] = if i.is_multiple_of(2) { [40, 70] } else { [33, 64] };
        Image::new(height, width, (0..3 * height * width).map(|b| ((b * (i + 3)) >> 2) as u8).collect())
    };
    let images = (0..12).map(picture).collect::<Result<Vec<_>>>()?;
    let uploaded = |image: &Image, cut: usize| {
        device.per_thread(|s| {
            let pixels = s.upload_blocking(&image.rgb()[..image.rgb().len() - cut])?;
            s.record(pixels).map_err(|r| r.error)
        })?
    };
    let size = |image: &Image| image.size();
    let mut pixels: Vec<_> = images.iter().map(|i| Ok((size(i), uploaded(i, 0)?))).collect::<Result<_>>()?;
    pixels[5].1 = uploaded(&images[5], 1)?;
    let sets = pipeline.run_pixels(pixels);
    for (i, (got, expected)) in sets.into_iter().zip(pipeline.run(&images)).enumerate() {
        match got {
            Ok(set) => assert_eq!(set, expected?, "image {i}"),
            Err(returned) => {
                assert_eq!((i, returned.value.len()), (5, 3 * 33 * 64 - 1));
                assert!(returned.error.to_string().contains("at least 6336 bytes"), "{}", returned.error);
            }
        }
    }
    // Two frames of one size, one with an upload and one without, keep slots of their own.
    let (tokens, pixels) = pipeline.submit_pixels(&[size(&images[0])], uploaded(&images[0], 0)?)?;
    let mut frame = pipeline.frame(&[size(&images[0])])?;
    frame.image_mut(0).copy_from_slice(images[2].rgb());
    let other = pipeline.submit(frame)?;
    assert_eq!(tokens.synchronize()?.set(0), pipeline.run(&images[..1]).remove(0)?);
    assert_eq!(other.synchronize()?.set(0), pipeline.run(&images[2..3]).remove(0)?);
    assert_eq!(pixels.synchronize()?.len(), images[0].rgb().len());
    Ok(())
}

/// After the driver fails, nobody can say when a batch is done. Whoever waits for its place must
/// not wait forever.
#[test]
fn a_place_whose_completion_cannot_be_known_comes_free() -> Result<()> {
    let pipeline = pipeline(1)?;
    let sizes = [Size::new(4, 4)];
    let frame = pipeline.frame(&sizes)?;
    let (open, gate) = mpsc::channel::<()>();
    frame.stream().enter(|s| s.launch_host(move || _ = gate.recv()))?;
    drop(pipeline.submit(frame)?);
    let mut waiting = pipeline.frame_async(&sizes);
    let mut poll = || Pin::new(&mut waiting).poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll().is_pending());
    pipeline.slots().lose_returning();
    assert!(matches!(poll(), Poll::Ready(Ok(_))), "its place is free");
    drop(open);
    Ok(())
}

/// Another thread may hold the lock of the places when the process forks. The child must not wait
/// for that thread, which it does not have. The test runs itself again in a new process and forks
/// there, while it holds the lock itself.
#[cfg(unix)]
#[test]
fn a_forked_child_waits_for_no_lock() -> Result<()> {
    const MARK: &str = "THALWEG_TEST_FORKS";
    unsafe extern "C" {
        fn fork() -> i32;
        fn alarm(seconds: u32) -> u32;
        fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
        fn _exit(status: i32) -> !;
    }
    if std::env::var_os(MARK).is_none() {
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "slots::tests::a_forked_child_waits_for_no_lock", "--test-threads=1", "--nocapture"])
            .env(MARK, "1")
            .status()
            .unwrap();
        assert!(status.success(), "{status}");
        return Ok(());
    }
    let pipeline = pipeline(5)?;
    let sizes = [Size::new(4, 4)];
    let frames = [(); 5].map(|()| pipeline.frame(&sizes));
    let [unused, second, third, fourth, fifth] = frames;
    let (unused, submitted) = (unused?, pipeline.submit(second?)?);
    let [parts, used, recycled] =
        [third, fourth, fifth].map(|frame| pipeline.submit(frame?)?.synchronize().map_err(|e| e.error));
    let (used, recycled) = (used?, recycled?);
    let draft = super::Draft::from(parts?.slot);
    let mut waiting = pipeline.frame_async(&sizes);
    assert!(Pin::new(&mut waiting).poll(&mut Context::from_waker(Waker::noop())).is_pending());

    let held = lock(&pipeline.slots().state);
    // SAFETY: This process runs one test (`--exact`, `--test-threads=1`) and the work above is
    // done, so no other thread holds a lock that the child needs, apart from `held`.
    let child = unsafe { fork() };
    if child == 0 {
        // SAFETY: `alarm` may be called at any time. Its signal ends a child that waits forever.
        unsafe { alarm(20) };
        drop((unused, submitted, used, draft));
        pipeline.recycle(recycled);
        drop(waiting);
        let told = matches!(pipeline.frame(&sizes), Err(thalweg::Error::Forked));
        // SAFETY: `_exit` may be called at any time. It ends the child without running exit
        // handlers, which belong to the parent.
        unsafe { _exit(if told { 0 } else { 1 }) };
    }
    let mut status = -1;
    // SAFETY: `child` is a child of this process, and `status` is a local integer that the call may
    // write.
    let ended = unsafe { waitpid(child, &mut status, 0) };
    assert_eq!((ended, status), (child, 0), "exit code 0 and no signal");
    drop(held);
    // The parent goes on.
    drop(unused);
    let Poll::Ready(frame) = Pin::new(&mut waiting).poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("the frame gave its place back")
    };
    drop((frame?, submitted, used, draft));
    pipeline.recycle(recycled);
    Ok(())
}
