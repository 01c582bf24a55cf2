//! Checkpoints, and what is left after something fails.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use support::{Sample, devices};
use thalweg::simt::bf16;
use thalweg::{Device, stream_tags};
use thalweg_train::{AdamW, Batch, Config, Error, Precision, Schedule, Tensors, TokenTransformer};

stream_tags!(Train);

const CONFIG: Config = Config {
    inputs: 5,
    width: 24,
    heads: 3,
    depth: 2,
    classes: 4,
    eps: 1e-5,
    gelu: thalweg_train::Gelu::Tanh,
    pool: thalweg_train::Pool::Mean,
};

fn optimiser() -> AdamW {
    AdamW { schedule: Schedule::Cosine { warm_up: 2, steps: 8, end: 0.1 }, clip: Some(0.5), ..AdamW::default() }
}

fn file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("thalweg-train-{}-{name}.safetensors", std::process::id()))
}

fn bits(tensors: &Tensors) -> Vec<(String, Vec<u32>)> {
    let bits = |data: &thalweg_train::Data| match data {
        thalweg_train::Data::F32(data) => data.iter().map(|v| v.to_bits()).collect(),
        other => panic!("{other:?}"),
    };
    tensors.tensors.iter().map(|(name, tensor)| (name.clone(), bits(&tensor.data))).collect()
}

fn restored_is_continued<E: Precision>(device: Device, name: &str) {
    let train = device.stream::<Train>().unwrap();
    let batches: Vec<_> = (0..6).map(|n| Sample::new(CONFIG.inputs, CONFIG.classes, 5, 7 + n)).collect();
    let mut straight = TokenTransformer::<_, E>::new(&train, CONFIG, 3).unwrap();
    *straight.optimiser_mut() = optimiser();
    for batch in &batches[..3] {
        straight.step(&batch.batch()).unwrap();
    }
    let path = file(name);
    let progress = BTreeMap::from([("epoch".to_owned(), "2".to_owned()), ("random".to_owned(), "77".to_owned())]);
    straight.checkpoint(&path, &progress).unwrap();
    let (mut restored, found) = TokenTransformer::<Train, E>::restore(&train, &path).unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!((found, restored.steps()), (progress, 3));
    *restored.optimiser_mut() = optimiser();
    for batch in &batches[3..] {
        let losses = [&mut straight, &mut restored].map(|model| model.step(&batch.batch()).unwrap().get().unwrap());
        assert_eq!(losses[0].to_bits(), losses[1].to_bits());
    }
    assert_eq!(bits(&straight.tensors().unwrap()), bits(&restored.tensors().unwrap()));
}

#[test]
fn a_restored_run_has_the_bits_of_one_without_interruption() {
    for &device in devices() {
        restored_is_continued::<f32>(device, "f32");
        restored_is_continued::<bf16>(device, "bf16");
    }
}

#[test]
fn the_same_batches_give_the_same_bits() {
    for &device in devices() {
        let train = device.stream::<Train>().unwrap();
        let run = || {
            let mut model = TokenTransformer::<_, f32>::new(&train, CONFIG, 9).unwrap();
            for n in 0..3 {
                model.step(&Sample::new(CONFIG.inputs, CONFIG.classes, 40, n).batch()).unwrap();
            }
            bits(&model.tensors().unwrap())
        };
        assert_eq!(run(), run());
    }
}

#[test]
fn a_refused_batch_changes_nothing() {
    for &device in devices() {
        let train = device.stream::<Train>().unwrap();
        let mut model = TokenTransformer::<_, f32>::new(&train, CONFIG, 1).unwrap();
        let sample = Sample::new(CONFIG.inputs, CONFIG.classes, 4, 1);
        model.step(&sample.batch()).unwrap();
        let before = bits(&model.tensors().unwrap());
        let good = sample.batch();
        let falling = [0, 3, 2, 4, good.rows() as i32];
        let wrong = [
            Batch { tokens: &good.tokens[1..], ..good },
            Batch { position: &[], ..good },
            Batch { cu_seqlens: &[], ..good },
            Batch { cu_seqlens: &falling, ..good },
            Batch { labels: &[0, 1, 2, 4], ..good },
            Batch { labels: &[0, 1, -1, 3], ..good },
            Batch { labels: &[], ..good },
        ];
        for batch in wrong {
            assert!(matches!(model.step(&batch), Err(Error::Batch(_))), "{batch:?}");
        }
        assert_eq!((bits(&model.tensors().unwrap()), model.steps()), (before, 1));
        model.step(&good).unwrap();
    }
}

#[test]
fn a_checkpoint_that_cannot_be_written_leaves_the_old_one() {
    let train = Device::cpu().unwrap().stream::<Train>().unwrap();
    let model = TokenTransformer::<_, f32>::new(&train, CONFIG, 1).unwrap();
    // The place is a folder that is not empty, so the file beside it cannot take the place.
    let folder = file("folder");
    fs::create_dir_all(folder.join("inside")).unwrap();
    let error = model.checkpoint(&folder, &BTreeMap::new()).unwrap_err();
    assert!(matches!(&error, Error::File { path, .. } if *path == folder), "{error}");
    assert!(folder.join("inside").is_dir());
    let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
    let beside = fs::read_dir(folder.parent().unwrap()).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = beside.filter(|n| n.to_str().is_some_and(|n| n.starts_with(&name) && *n != name)).collect();
    assert!(left.is_empty(), "{left:?} is left");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_broken_file_is_an_error_that_names_it() {
    let train = Device::cpu().unwrap().stream::<Train>().unwrap();
    let path = file("broken");
    let mut tensors = TokenTransformer::<_, f32>::new(&train, CONFIG, 1).unwrap().tensors().unwrap();
    tensors.tensors.remove("head.bias");
    tensors.save(&path).unwrap();
    let error = TokenTransformer::<Train, f32>::restore(&train, &path).unwrap_err().to_string();
    assert!(error.contains("broken") && error.contains("head.bias"), "{error}");
    let whole = fs::read(&path).unwrap();
    for len in [0, 7, 100, whole.len() - 1] {
        fs::write(&path, &whole[..len]).unwrap();
        assert!(matches!(Tensors::load(&path), Err(Error::Format { .. })), "{len} bytes");
    }
    fs::remove_file(path).unwrap();
}
