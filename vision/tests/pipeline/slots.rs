//! Tests of slots: how many batches can be under way, and what becomes of batches that nobody waits
//! for.

use std::pin::Pin;
use std::task::{Context, Waker};
use std::thread;

use testkit::devices::{alone, devices};
use testkit::gate::guarded;
use thalweg::{AnyStream, Device, Error, Size};
use thalweg_vision::TokenParams;

use crate::gates::{drop_without_waiting, gated, gpus_and_a_cpu};
use crate::run::given;
use crate::{deep, eventually, finish, mixed, noise, pipeline, small_params, submit, unwrap_all};

/// A pipeline is as deep as it says. One more frame waits until another one, of any sizes, comes
/// back or is dropped.
#[test]
fn frames_are_as_many_as_the_pipeline_is_deep() {
    let _alone = alone();
    let image = given(&noise(40, 50));
    for &device in devices() {
        let pipeline = deep(device, small_params(), 3);
        let sizes = [Size::new(40, 50)];
        let mut frames: Vec<_> = (0..3).map(|_| pipeline.frame(&sizes).unwrap()).collect();
        assert!(pipeline.try_frame(&sizes).unwrap().is_none());
        drop(frames.pop());
        let submitted = submit(&pipeline, &image).unwrap();
        assert!(pipeline.try_frame(&[Size::new(1, 1)]).unwrap().is_none());
        thread::scope(|threads| {
            // This works whichever of the two threads comes first.
            let waiting = threads.spawn(|| pipeline.frame(&[Size::new(7, 9)]).unwrap().size(0));
            pipeline.recycle(submitted.synchronize().unwrap());
            assert_eq!(waiting.join().unwrap(), Size::new(7, 9), "another size took the free slot's place");
        });
        drop(pipeline.submit(frames.pop().unwrap()).unwrap());
        for wrong in [&[][..], &[Size::new(0, 1)], &[Size::new(1, 16385)]] {
            let error = pipeline.try_frame(wrong).unwrap_err();
            assert!(matches!(error, Error::Parameter { .. }), "{error:?}");
        }
        // What failed took no place, and the batch that was dropped under way gives its own back.
        let others = [(); 2].map(|()| eventually("two places are free", || pipeline.try_frame(&sizes).unwrap()));
        assert!(pipeline.try_frame(&sizes).unwrap().is_none());
        drop((frames, others));
    }
}

/// Many more images can be under way than `run` keeps, and be finished in any order.
#[test]
fn any_number_can_be_under_way() {
    let _alone = alone();
    for &device in devices() {
        let images = mixed();
        let pipeline = deep(device, small_params(), 4 * images.len());
        let want = unwrap_all(pipeline.run(&images));
        let mut under_way: Vec<_> =
            (0..4).flat_map(|_| images.iter().zip(&want)).map(|(i, w)| (submit(&pipeline, i).unwrap(), w)).collect();
        while !under_way.is_empty() {
            let (submitted, want) = under_way.swap_remove(under_way.len() / 2);
            assert!(finish(&pipeline, submitted) == *want, "on {device}");
        }
    }
}

/// An image belongs to the parameters it was submitted under, not to the pipeline that waits for
/// it.
#[test]
fn another_pipeline_can_wait() {
    let _alone = alone();
    let image = given(&noise(70, 90));
    for &device in devices() {
        let one = pipeline(device, small_params());
        let want = one.run(std::slice::from_ref(&image)).remove(0).unwrap();
        let submitted = submit(&one, &image).unwrap();
        drop(one);
        let other = pipeline(device, TokenParams::default());
        assert!(finish(&other, submitted) == want, "on {device}");
    }
}

#[test]
fn submitting_and_dropping_wait_for_nothing() {
    let _alone = alone();
    let image = given(&noise(64, 80));
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    for device in gpus_and_a_cpu() {
        let want = pipeline(device, small_params()).run(std::slice::from_ref(&image)).remove(0).unwrap();
        for order in orders {
            for opened in 0..=3 {
                let (pipeline, frames, gates) = gated::<3>(device, &image);
                let mut submitted: Vec<_> = frames.into_iter().map(|frame| pipeline.submit(frame).unwrap()).collect();
                for &gate in &order[..opened] {
                    gates[gate].open();
                }
                if opened == 0 {
                    assert!(!submitted[1].is_complete().unwrap(), "nothing has run yet");
                }
                drop_without_waiting(submitted.pop());
                drop_without_waiting(submitted.pop());
                for &gate in &order[opened..] {
                    gates[gate].open();
                }
                let tokens = submitted.remove(0).synchronize().unwrap();
                assert!(tokens.set(0) == want, "order {order:?}, {opened} open, on {device}");
                pipeline.recycle(tokens);
                let again: Vec<_> = (0..3).map(|_| submit(&pipeline, &image).unwrap()).collect();
                for submitted in again {
                    assert!(submitted.synchronize().unwrap().set(0) == want);
                }
            }
        }
    }
}

/// Whoever drops a batch, or the future of one, has not ended its work: until that is done its
/// place is taken.
#[test]
fn a_dropped_batch_keeps_its_place_until_it_is_done() {
    let _alone = alone();
    let image = given(&noise(64, 80));
    let sizes = [Size::new(64, 80)];
    for device in gpus_and_a_cpu() {
        let (pipeline, frames, [first, second]) = gated::<2>(device, &image);
        let mut submitted = frames.into_iter().map(|frame| pipeline.submit(frame).unwrap());
        drop(submitted.next().unwrap());
        let mut future = submitted.next().unwrap().into_future();
        assert!(Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(future);

        for sizes in [sizes, [Size::new(1, 1)]] {
            assert!(pipeline.try_frame(&sizes).unwrap().is_none(), "both places are taken on {device}");
        }
        second.open();
        let frame = eventually("one place is free again", || pipeline.try_frame(&sizes).unwrap());
        assert!(pipeline.try_frame(&sizes).unwrap().is_none(), "the other is taken on {device}");
        first.open();
        let other = eventually("the other place is free again", || pipeline.try_frame(&sizes).unwrap());
        assert!(pipeline.try_frame(&sizes).unwrap().is_none(), "there are two on {device}");
        drop((frame, other));
    }
}

/// A batch that `unzip` or `wait` took over is not the pipeline's any more: its place comes free as
/// soon as it is dropped, although its work goes on.
#[test]
fn a_batch_that_was_taken_over_gives_its_place_back_at_once() {
    let _alone = alone();
    let image = given(&noise(64, 80));
    let sizes = [Size::new(64, 80)];
    for device in gpus_and_a_cpu() {
        let (pipeline, frames, gates) = gated::<2>(device, &image);
        let [first, second] = &gates;
        guarded(&[first, second], || {
            let mut submitted = frames.into_iter().map(|frame| pipeline.submit(frame).unwrap());
            let unzipped = submitted.next().unwrap().unzip();
            let other = AnyStream::new(device).unwrap();
            let waited = other.enter(|s| {
                let on = s.wait(submitted.next().unwrap()).unwrap();
                assert!(pipeline.try_frame(&sizes).unwrap().is_none(), "both places are taken on {device}");
                drop(on);
                pipeline.try_frame(&sizes).unwrap()
            });
            assert!(waited.is_some(), "one place is free again on {device}");
            assert!(pipeline.try_frame(&sizes).unwrap().is_none(), "the other is taken on {device}");
            drop(unzipped);
            let other = pipeline.try_frame(&sizes).unwrap();
            assert!(other.is_some(), "both places are free on {device}");
        });
    }
}

/// A thread that waits for a frame gets the place of a batch that was dropped.
#[test]
fn a_thread_waits_for_a_dropped_batch() {
    let _alone = alone();
    let image = given(&noise(64, 80));
    for device in gpus_and_a_cpu() {
        let (pipeline, mut frames, [gate]) = gated::<1>(device, &image);
        let submitted = pipeline.submit(frames.remove(0)).unwrap();
        thread::scope(|threads| {
            let waiting = threads.spawn(|| pipeline.frame(&[Size::new(64, 80)]).unwrap().size(0));
            drop(submitted);
            assert!(pipeline.try_frame(&[Size::new(64, 80)]).unwrap().is_none(), "its work is not done on {device}");
            gate.open();
            assert_eq!(waiting.join().unwrap(), Size::new(64, 80));
        });
    }
}

/// Dropping a pipeline parks its streams; what is under way on them goes on.
#[test]
fn a_pipeline_can_go_before_its_images() {
    let _alone = alone();
    let image = given(&noise(64, 80));
    let device = Device::new_cpu().unwrap();
    let want = pipeline(device, small_params()).run(std::slice::from_ref(&image)).remove(0).unwrap();
    let (one, mut frames, gates) = gated::<1>(device, &image);
    let submitted = one.submit(frames.remove(0)).unwrap();
    drop_without_waiting(one);
    drop(gates);
    assert!(submitted.synchronize().unwrap().set(0) == want);
}
