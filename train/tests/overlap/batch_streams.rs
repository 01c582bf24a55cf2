//! Several batches of a step at once, each on a stream of its own: the pattern of an example.

#[path = "../../examples/batch_streams.rs"]
#[allow(dead_code, reason = "the test runs the pattern, and not the rest")]
mod example;

use example::{Model, Training};
use testkit::devices::alone;
use testkit::gate::{Gate, guarded};
use thalweg::{Device, StreamPool, Timeline};

use crate::common::{everywhere_and_seeded, lanes, own_devices};

/// Three batches, of which the last has fewer rows.
fn batches() -> Vec<Vec<f32>> {
    let number = |i: usize| (i * 37 % 101) as f32 / 50.0 - 1.0;
    [(0, 16), (16, 32), (32, 38)].map(|(from, to)| (2 * from..2 * to).map(number).collect()).to_vec()
}

fn learn(device: Device, streams: usize, batches: &[Vec<f32>]) -> Vec<f32> {
    let (model, pool) = (Model::new(8).unwrap(), StreamPool::new(device, streams).unwrap());
    let [train] = lanes(device);
    train.enter(|train| {
        let mut training = Training::new(&model, train, batches).unwrap();
        (0..5).for_each(|_| training.step(&pool, &Timeline::disabled()).unwrap());
        training.weights().unwrap()
    })
}

#[test]
fn batches_on_streams_have_the_bits_of_one_stream_and_the_update_of_one_batch() {
    let _alone = alone();
    everywhere_and_seeded(|device| {
        let serial = learn(device, 1, &batches());
        assert!(learn(device, 3, &batches()) == serial, "{device}");
        let whole = learn(device, 1, &[batches().concat()]);
        let apart = whole.iter().zip(&serial).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(apart < 1e-4, "{device}: {apart:e} from one batch");
        let half = learn(device, 1, &batches()[..2]);
        assert!(half.iter().zip(&serial).any(|(a, b)| (a - b).abs() > 1e-3), "{device}: the last batch counts");
    });
}

/// While the stream of one batch stands at a gate, the others compute theirs, and the host goes on.
#[test]
fn the_passes_of_two_batches_go_on_beside_a_third() {
    let _alone = alone();
    for device in own_devices() {
        let (model, pool) = (Model::new(8).unwrap(), StreamPool::new(device, 3).unwrap());
        let [train] = lanes(device);
        let weights = train.enter(|s| {
            let mut training = Training::new(&model, s, &batches()).unwrap();
            s.synchronize().unwrap();
            let gate = Gate::closed(device);
            guarded(&[&gate], || {
                // The streams are lent in turn, so the third batch gets the one that is held here.
                pool.with_stream(|s| gate.hold(s));
                training.step(&pool, &Timeline::disabled()).unwrap();
                (0..2).for_each(|_| pool.with_stream(|s| s.synchronize()).unwrap());
                let done: Vec<_> = (0..3).map(|_| pool.with_stream(|s| s.is_complete()).unwrap()).collect();
                assert_eq!(done, [false, true, true], "{device}");
                assert!(!s.is_complete().unwrap(), "{device}: the sum waits for the third");
                gate.open();
            });
            (0..4).for_each(|_| training.step(&pool, &Timeline::disabled()).unwrap());
            training.weights().unwrap()
        });
        assert!(weights == learn(device, 1, &batches()), "{device}");
    }
}
