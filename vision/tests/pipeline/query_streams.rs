//! Textures, scores with a query, and allocation run on streams of their own. They compute what the
//! golden file and the pipeline say, and each runs beside the others.

#[path = "../../../examples/support/query.rs"]
mod query;

use query::{Results, Slot, query_streams};
use testkit::devices::{alone, devices};
use testkit::files::{Tensors, read_png, repository};
use testkit::gate::{Gate, guarded};
use testkit::oracle::{self, PLANES, SCORE_ERROR, assert_close, relevance_error, wide};
use thalweg::{AnyStream, Device, Event, Result, Ring, Timeline};
use thalweg_vision::{Head, Image, Pipeline, Query, TokenParams, TokenSet};

/// The bound on what the query's score and the weights may differ by from the golden file.
const QUERY_ERROR: f64 = 2e-6;

fn golden_query() -> (Head, Query) {
    let read = |name: &str| std::fs::read(repository(format!("tests/golden/{name}.safetensors"))).unwrap();
    (Head::from_safetensors(&read("head-weights")).unwrap(), Query::from_safetensors(&read("query")).unwrap())
}

/// Chelsea, and images of the same size with other contents.
fn batch() -> Vec<Image> {
    let chelsea = read_png("assets/photos/chelsea.png");
    let (height, width) = (chelsea.height as u32, chelsea.width as u32);
    let rows = chelsea.rgb.chunks(3 * chelsea.width);
    let contents = [
        chelsea.rgb.clone(),
        rows.rev().flatten().copied().collect(),
        chelsea.rgb.iter().map(|v| 255 - v).collect(),
        chelsea.rgb.iter().map(|v| v / 2 + 60).collect(),
        chelsea.rgb.chunks(3).flat_map(|p| [p[2], p[1], p[0]]).collect(),
        chelsea.rgb.chunks(3).rev().flatten().copied().collect(),
    ];
    contents.map(|rgb| Image::new(height, width, rgb).unwrap()).into()
}

fn slots(device: Device, image: &Image, n: usize) -> Ring<Slot> {
    let (head, query) = golden_query();
    let size = image.size();
    let slot = |_| Event::ready(Slot::new(device, size, &TokenParams::default(), &head, &query).unwrap());
    (0..n).map(slot).collect()
}

/// Runs the images on four streams, and calls `before` on the host before each image is loaded.
fn run(
    lanes: &[AnyStream],
    slots: &mut Ring<Slot>,
    images: &[Image],
    mut before: impl FnMut(usize) -> Result<()>,
) -> Vec<Results> {
    let mut results = Vec::new();
    let load = |n: usize, slot: &mut Slot| {
        before(n)?;
        slot.image.copy_from_slice(images[n].rgb());
        Ok(())
    };
    let take = |_, slot: &mut Slot| {
        results.push(slot.results());
        Ok(())
    };
    lanes[0].enter(|up| {
        lanes[1].enter(|first| {
            lanes[2].enter(|second| {
                lanes[3].enter(|third| {
                    let (streams, off) = ((up, first, second, third), Timeline::disabled());
                    query_streams(streams, slots, images.len(), load, take, &off).unwrap();
                })
            })
        })
    });
    results
}

/// Checks the allocation of a run, and its tokens against those of the pipeline. The pipeline sums
/// in another order, so a patch may get another side where two relevances round differently. The
/// tokens of the patches with the same side must agree.
#[track_caller]
fn check(what: &str, got: &Results, set: &TokenSet) {
    let params = TokenParams::default();
    let [entropy, salience, participatory, relevance] = &got.maps;
    let (lo, hi) = (*params.sides.start(), *params.sides.end());
    let sides = oracle::allocate(relevance, lo, hi, params.budget, params.focus);
    assert_eq!(got.sides, sides.iter().map(|&n| n as i32).collect::<Vec<_>>(), "{what}: sides");

    let close = |name: &str, ours: &[f32], theirs: &[f32], bound: f64| {
        assert_close(&format!("{what}: {name}, beside the pipeline"), ours, &wide(theirs), bound);
    };
    close("entropy", entropy, &set.entropy, 2.0 * SCORE_ERROR);
    close("salience", salience, &set.salience, 2.0 * SCORE_ERROR);
    close("participatory", participatory, set.participatory.as_ref().unwrap(), 1e-4);
    close("mix", &got.mix, &set.mix.unwrap(), 2.0 * QUERY_ERROR);

    let (mut ours, mut theirs, mut same) = (0, 0, 0);
    for (a, b) in got.sides.iter().zip(&set.sides) {
        let (ends, end) = (PLANES * (a * a) as usize, PLANES * (b * b) as usize);
        if a == b {
            close("tokens", &got.tokens[ours..ours + ends], &set.tokens[theirs..theirs + end], 2.0 * SCORE_ERROR);
            same += 1;
        }
        (ours, theirs) = (ours + ends, theirs + end);
    }
    assert_eq!((ours, theirs), (got.tokens.len(), set.tokens.len()), "{what}: number of tokens");
    assert!(100 * same >= 95 * got.sides.len(), "{what}: only {same} of {} sides agree", got.sides.len());
}

#[test]
fn three_streams_compute_what_the_golden_file_and_the_pipeline_say() {
    let _alone = alone();
    let file = Tensors::read("tests/golden/chelsea-query.safetensors");
    let map = |name: &str| wide(&file.f32(name).data);
    let (maps, mix) = (["entropy", "salience", "participatory"].map(map), map("mix"));
    let (_, spread) = oracle::relevance(&maps.each_ref().map(|map| &map[..]), &mix);
    let images = batch();
    let (head, query) = golden_query();
    for &device in devices() {
        let lanes: Vec<_> = (0..4).map(|_| AnyStream::new(device).unwrap()).collect();
        let mut slots = slots(device, &images[0], 3);
        let got = run(&lanes, &mut slots, &images, |_| Ok(()));
        assert_eq!(got.len(), images.len());

        let what = format!("chelsea on three streams of {device}");
        let bounds = [SCORE_ERROR, SCORE_ERROR, QUERY_ERROR];
        for ((ours, want), bound) in got[0].maps.iter().zip(&maps).zip(bounds) {
            assert_close(&what, ours, want, bound);
        }
        assert_close(&format!("{what}: relevance"), &got[0].maps[3], &map("relevance"), relevance_error(spread));
        assert_close(&format!("{what}: mix"), &got[0].mix, &mix, QUERY_ERROR);

        let pipeline = Pipeline::new(device, TokenParams::default()).unwrap().with_query(&head, &query).unwrap();
        for (n, (got, set)) in got.iter().zip(pipeline.run(&images)).enumerate() {
            check(&format!("image {n} on {device}"), got, &set.unwrap());
        }
        assert!(got.windows(2).all(|pair| pair[0] != pair[1]), "the images differ, and so do their tokens");
        // A slot leaves nothing behind for the next image, in whatever order they come.
        let backwards: Vec<_> = images.iter().rev().cloned().collect();
        let mut reversed = run(&lanes, &mut slots, &backwards, |_| Ok(()));
        reversed.reverse();
        assert!(reversed == got, "in the other order on {device}");
    }
}

/// While one stage stands at a gate, the stages before it complete all images that are under way,
/// and the host goes on.
#[test]
fn every_stage_runs_beside_the_others() {
    let _alone = alone();
    let images = batch();
    for &device in devices() {
        let lanes: Vec<_> = (0..4).map(|_| AnyStream::new(device).unwrap()).collect();
        // The first run loads kernels, for which a device may wait.
        let mut slots = slots(device, &images[0], 5);
        let want = run(&lanes, &mut slots, &images, |_| Ok(()));
        for held in 0..4 {
            let gate = Gate::closed(device);
            let before = |n: usize| {
                if n == 4 {
                    // Images 0 to 3 are under way.
                    lanes[..held].iter().try_for_each(|lane| lane.enter(|s| s.synchronize()))?;
                    let done: Vec<_> = lanes.iter().map(|lane| lane.enter(|s| s.is_complete()).unwrap()).collect();
                    assert_eq!(done, [0 < held, 1 < held, 2 < held, false], "{device}: {held} is held");
                    gate.open();
                }
                Ok(())
            };
            let got = guarded(&[&gate], || {
                lanes[held].enter(|s| gate.hold(s));
                run(&lanes, &mut slots, &images, before)
            });
            assert!(got == want, "{device}: {held} was held");
        }
    }
}
