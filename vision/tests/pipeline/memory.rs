//! Tests of memory: batches use that of earlier ones again, and nothing leaks.

use std::collections::HashSet;
use testkit::devices::{alone, devices, report};
use thalweg::{Device, DeviceKind};
use thalweg_vision::{Pipeline, TokenParams};

use crate::gates::gpus_and_a_cpu;
use crate::run::given;
use crate::{deep, eventually, finish, frame, mixed, noise, pipeline, small_params, submit, unwrap_all};

/// In the steady state a batch takes the memory of an earlier one.
#[test]
fn the_steady_state_allocates_nothing() {
    let _alone = alone();
    for device in gpus_and_a_cpu() {
        let image = given(&noise(64, 64));
        let pipeline = deep(device, small_params(), 2);
        let go_round = || {
            let mut tokens = submit(&pipeline, &image).unwrap().synchronize().unwrap();
            let place = tokens.position().as_ptr();
            assert!(tokens.set(0).len() <= 500);
            let mut frame = frame(&pipeline, std::slice::from_ref(&image)).unwrap();
            let pixels = frame.image_mut(0).as_ptr();
            pipeline.recycle(tokens);
            tokens = pipeline.submit(frame).unwrap().synchronize().unwrap();
            let other = tokens.position().as_ptr();
            pipeline.recycle(tokens);
            (place, pixels, other)
        };
        // The memory in which the first rounds staged constants comes back a little later.
        (0..4).for_each(|_| _ = go_round());
        let first = go_round();
        if device.kind() == DeviceKind::Cpu {
            device.limit_memory(Some(1)); // nothing more can be allocated
        }
        for _ in 0..10 {
            assert_eq!(go_round(), first, "on {device}");
        }
    }
}

/// However many batches are dropped under way, the memory is that of as many as the pipeline is
/// deep.
#[test]
fn dropped_batches_use_the_same_memory_again() {
    let _alone = alone();
    let image = given(&noise(64, 64));
    for device in gpus_and_a_cpu() {
        let pipeline = deep(device, small_params(), 2);
        let mut places = HashSet::new();
        let mut go_round = |times| {
            for i in 0..times {
                let mut frame = frame(&pipeline, std::slice::from_ref(&image)).unwrap();
                places.insert(frame.image_mut(0).as_ptr());
                if i % 4 == 3 {
                    drop(frame);
                } else {
                    drop(pipeline.submit(frame).unwrap());
                }
            }
            places.len()
        };
        // Two slots, each captured.
        let two = [(); 2].map(|()| frame(&pipeline, std::slice::from_ref(&image)).unwrap());
        drop(two);
        go_round(12);
        let want = finish(&pipeline, submit(&pipeline, &image).unwrap());
        if device.kind() == DeviceKind::Cpu {
            device.limit_memory(Some(1)); // nothing more can be allocated
        }
        let places = go_round(200);
        assert!(places <= 2, "{places} places in memory on {device}, for a depth of 2");
        assert!(finish(&pipeline, submit(&pipeline, &image).unwrap()) == want, "on {device}");
    }
}

/// Bytes that the process holds, where the system tells.
fn resident() -> Option<usize> {
    let pages = std::fs::read_to_string("/proc/self/statm").ok()?;
    Some(pages.split(' ').nth(1)?.parse::<usize>().ok()? * 4096)
}

/// Memory does not grow while hundreds of images are dropped, fail or are finished. A leak of the
/// planes or of the tokens, in device or host memory, would be 250 MB or more.
#[test]
fn nothing_leaks() {
    const SLACK: usize = 150 << 20;
    let _alone = alone();
    let image = given(&noise(300, 320)); // 5 MB of planes
    for &device in devices() {
        let params = TokenParams::default().with_budget(40_000);
        let pipeline = pipeline(device, params);
        let overflowing = TokenParams::default().with_patch(1).with_sides(255..=255).with_budget(u64::MAX);
        let failing = Pipeline::new(device, overflowing).unwrap();
        let sizes = [image.size()];
        let go_round = |times| {
            for i in 0..times {
                if i % 8 == 7 {
                    assert!(failing.frame(&sizes).is_err());
                    continue;
                }
                let submitted = submit(&pipeline, &image).unwrap();
                match i % 4 {
                    3 => drop(finish(&pipeline, submitted)),
                    2 => drop(submitted.synchronize().unwrap()),
                    1 => drop(frame(&pipeline, std::slice::from_ref(&image)).unwrap()),
                    // Nobody waits for this image. The test waits for the next one, so that the
                    // memory in use has a bound.
                    _ => drop(submitted),
                }
            }
            finish(&pipeline, submit(&pipeline, &image).unwrap());
        };
        go_round(16);
        let before = (device.free_memory().unwrap() as usize, resident());
        go_round(128);
        let after = (device.free_memory().unwrap() as usize, resident());
        println!("{device}: free device memory and resident memory {before:?}, then {after:?}");
        if device.kind() == DeviceKind::Cuda {
            assert!(before.0.saturating_sub(after.0) < SLACK, "device memory: {before:?}, then {after:?}");
        }
        match (before.1, after.1) {
            // The driver's own memory, and a checker's, is not ours to bound.
            _ if device.kind() == DeviceKind::Cuda => {}
            (Some(before), Some(after)) => {
                assert!(after.saturating_sub(before) < SLACK, "{before} bytes, then {after}")
            }
            _ => report("NOT COVERED: host memory, because the system does not tell how much is resident"),
        }
    }
}

/// A dropped pipeline gives its memory back. It once did not, because each free slot kept the list
/// of free slots alive, and the list kept the slot.
#[test]
fn a_dropped_pipeline_gives_its_slots_back() {
    let device = Device::new_cpu().unwrap();
    device.limit_memory(Some(64 << 20));
    let free = device.free_memory().unwrap();
    let image = given(&noise(40, 50));
    let (first, second) = (pipeline(device, small_params()), pipeline(device, small_params()));
    let kept = submit(&first, &image).unwrap();
    for other in [&first, &second] {
        unwrap_all(other.run(&vec![image.clone(); 6]));
    }
    drop((first, second));
    let kept = kept.synchronize().unwrap();
    assert!(!kept.is_empty() && device.free_memory().unwrap() < free);
    drop(kept);
    device.per_thread(|s| s.synchronize()).unwrap().unwrap();
    eventually("its memory is free", || (device.free_memory().unwrap() == free).then_some(()));
}

/// Forgetting an image leaks it, and harms no other.
#[test]
fn forgetting_an_image_harms_no_other() {
    let _alone = alone();
    let images = mixed();
    for &device in devices() {
        let pipeline = deep(device, small_params(), images.len() + 1);
        let want = unwrap_all(pipeline.run(&images));
        for image in &images {
            std::mem::forget(submit(&pipeline, image).unwrap());
        }
        assert!(unwrap_all(pipeline.run(&images)) == want, "on {device}");
    }
}
