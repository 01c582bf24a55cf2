//! Checkpoints, and what is left after something fails.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use thalweg::simt::bf16;
use thalweg::{AnyStream, Device, PerThread, Stream, stream_tags};
use thalweg_train::{
    AdamW, DeviceBatch, Error, MatmulBackend, Precision, Schedule, Tensors, TokenBatch, TokenTransformer,
    TokenTransformerConfig,
};

use crate::support::{Sample, bits, devices, distance, numbers, products};

stream_tags!(Train);

fn base_config() -> TokenTransformerConfig {
    TokenTransformerConfig::default()
        .with_input_dim(5)
        .with_embed_dim(24)
        .with_num_heads(3)
        .with_depth(2)
        .with_num_classes(4)
        .with_norm_eps(1e-5)
        .with_gelu(thalweg_train::Gelu::Tanh)
        .with_pooling(thalweg_train::Pooling::Mean)
}

fn optimizer() -> AdamW {
    AdamW::default()
        .with_schedule(Schedule::Cosine { warmup_steps: 2, steps: 8, end: 0.1 })
        .with_max_grad_norm(Some(0.5))
}

fn file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("thalweg-train-{}-{name}.safetensors", std::process::id()))
}

fn restored_is_continued<E: Precision>(device: Device, name: &str) {
    AnyStream::new(device).unwrap().enter(|train| {
        let batches: Vec<_> =
            (0..6).map(|n| Sample::new(base_config().input_dim, base_config().num_classes, 5, 7 + n)).collect();
        let mut straight = TokenTransformer::<_, E>::new(train, base_config(), 3).unwrap();
        *straight.optimizer_mut() = optimizer();
        for batch in &batches[..3] {
            straight.step(&batch.batch()).unwrap();
        }
        let path = file(name);
        let progress = BTreeMap::from([("epoch".to_owned(), "2".to_owned()), ("random".to_owned(), "77".to_owned())]);
        straight.checkpoint(&path, &progress).unwrap();
        let (mut restored, found) = TokenTransformer::<_, E>::restore(train, &path).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!((found, restored.steps()), (progress, 3));
        *restored.optimizer_mut() = optimizer();
        for batch in &batches[3..] {
            let losses =
                [&mut straight, &mut restored].map(|model| model.step(&batch.batch()).unwrap().item().unwrap());
            assert_eq!(losses[0].to_bits(), losses[1].to_bits());
        }
        assert_eq!(bits(&straight.tensors().unwrap()), bits(&restored.tensors().unwrap()));
    });
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
        AnyStream::new(device).unwrap().enter(|train| {
            let run = || {
                let mut model = TokenTransformer::<_, f32>::new(train, base_config(), 9).unwrap();
                for n in 0..3 {
                    model
                        .step(&Sample::new(base_config().input_dim, base_config().num_classes, 40, n).batch())
                        .unwrap();
                }
                bits(&model.tensors().unwrap())
            };
            assert_eq!(run(), run());
        });
    }
}

#[test]
fn equal_tensors_give_equal_files() {
    let mut tensors = Tensors::default();
    tensors.insert("weight", &[2, 1], vec![1.0f32, 2.0]);
    tensors.insert("labels", &[1], vec![3]);
    tensors.metadata.extend((0..20).map(|i| (format!("key {i}"), format!("\"{i}\" \u{e9}"))));
    let path = file("equal");
    let save = |tensors: &Tensors| {
        tensors.save(&path).unwrap();
        fs::read(&path).unwrap()
    };
    let first = save(&tensors);
    let loaded = Tensors::load(&path).unwrap();
    assert_eq!((&loaded.tensors, &loaded.metadata), (&tensors.tensors, &tensors.metadata));
    assert!(save(&tensors) == first && save(&loaded) == first);
    fs::remove_file(&path).unwrap();
}

#[test]
fn a_refused_batch_changes_nothing() {
    for &device in devices() {
        AnyStream::new(device).unwrap().enter(|train| {
            let mut model = TokenTransformer::<_, f32>::new(train, base_config(), 1).unwrap();
            let sample = Sample::new(base_config().input_dim, base_config().num_classes, 4, 1);
            model.step(&sample.batch()).unwrap();
            let before = bits(&model.tensors().unwrap());
            let good = sample.batch();
            let falling = [0, 3, 2, 4, good.rows() as i32];
            let wrong = [
                TokenBatch { tokens: &good.tokens[1..], ..good },
                TokenBatch { position: &[], ..good },
                TokenBatch { cu_seqlens: &[], ..good },
                TokenBatch { cu_seqlens: &falling, ..good },
                TokenBatch { labels: &[0, 1, 2, 4], ..good },
                TokenBatch { labels: &[0, 1, -1, 3], ..good },
                TokenBatch { labels: &[], ..good },
            ];
            for batch in wrong {
                assert!(matches!(model.step(&batch), Err(Error::Batch(_))), "{batch:?}");
            }
            assert_eq!((bits(&model.tensors().unwrap()), model.steps()), (before, 1));
            model.step(&good).unwrap();
        });
    }
}

#[test]
fn a_checkpoint_that_cannot_be_written_leaves_the_old_one() {
    let train = Device::cpu().unwrap().stream::<Train>().unwrap();
    let model = TokenTransformer::<_, f32>::new(&train, base_config(), 1).unwrap();
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
    let mut tensors = TokenTransformer::<_, f32>::new(&train, base_config(), 1).unwrap().tensors().unwrap();
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

/// A step as a graph has the bits of the same step call by call, while the rate changes and shapes
/// come in turn.
#[test]
fn steps_as_graphs_have_the_same_bits() {
    fn run<E: Precision>(device: Device, by: MatmulBackend, graphs: bool) -> Vec<(String, Vec<u32>)> {
        AnyStream::new(device).unwrap().enter(|s| {
            let mut model = TokenTransformer::<_, E>::new(s, base_config(), 9).unwrap();
            *model.optimizer_mut() = optimizer();
            model.set_matmul_backend(by);
            model.set_graphs(graphs);
            let samples = [
                Sample::new(base_config().input_dim, base_config().num_classes, 6, 1),
                Sample::new(base_config().input_dim, base_config().num_classes, 3, 2),
            ];
            for n in 0..8 {
                model.step(&samples[n % 2].batch()).unwrap();
            }
            model.optimizer_mut().max_grad_norm = None; // what the graphs hold is not true any more
            for n in 0..4 {
                model.step(&samples[n % 2].batch()).unwrap();
            }
            assert_eq!(model.graphs(), if graphs { 4 } else { 0 });
            bits(&model.tensors().unwrap())
        })
    }
    for &device in devices() {
        for by in products(device) {
            assert!(run::<f32>(device, by, true) == run::<f32>(device, by, false), "{device}");
            assert!(run::<bf16>(device, by, true) == run::<bf16>(device, by, false), "{device}");
        }
    }
}

/// Rows behind the last sequence change neither the loss nor an update, whatever finite numbers
/// they hold.
#[test]
fn padding_changes_nothing() {
    for &device in devices() {
        AnyStream::new(device).unwrap().enter(|s| {
            let sample = Sample::new(base_config().input_dim, base_config().num_classes, 5, 4);
            let rows = sample.position.len() / 2;
            let run = |padding: Option<(usize, f32)>| {
                let (more, value) = padding.unwrap_or((0, 0.0));
                let padded = |data: &[f32], of| [data, &vec![value; more * of]].concat();
                let tokens = s.upload_blocking(&padded(&sample.tokens, base_config().input_dim)).unwrap();
                let position = s.upload_blocking(&padded(&sample.position, 2)).unwrap();
                let cu_seqlens = s.upload_blocking(&sample.cu_seqlens).unwrap();
                let labels = s.upload_blocking(&sample.labels).unwrap();
                let mut model = TokenTransformer::<_, f32>::new(s, base_config(), 9).unwrap();
                let batch = DeviceBatch {
                    tokens: &tokens,
                    position: &position,
                    cu_seqlens: &cu_seqlens,
                    labels: &labels,
                    padded: padding.is_some(),
                };
                let losses = [(); 4].map(|()| model.step_on(&batch).unwrap().item().unwrap());
                (losses, model.tensors().unwrap())
            };
            let room = 31 - rows % 8; // the same number of rows with all of these, after rounding up
            let (losses, tensors) = run(Some((room, 0.0)));
            for (more, value) in [(room, 7.5), (room, -3e4), (room - 3, 1.0)] {
                let (other, others) = run(Some((more, value)));
                assert_eq!(losses, other, "{device}: {more} rows of {value}");
                assert!(bits(&tensors) == bits(&others), "{device}: {more} rows of {value}");
            }
            let (exact, without) = run(None);
            assert!(losses.iter().zip(exact).all(|(a, b)| (a - b).abs() < 1e-5 * b), "{losses:?}, {exact:?}");
            for name in tensors.tensors.keys().filter(|name| !name.ends_with("qkv.bias")) {
                let error = distance(&numbers(&tensors, name), &numbers(&without, name));
                assert!(error < 1e-4, "{device}: {name} is off by {error:.2e}");
            }
            // A batch whose rows are all in sequences has room for the padding, too.
            assert_eq!(run(Some((0, 0.0))).0.map(|loss| loss.is_finite()), [true; 4]);
        });
    }
}

#[test]
fn lengths_of_a_batch_on_the_device_are_checked() {
    let cpu = Device::cpu().unwrap();
    AnyStream::new(cpu).unwrap().enter(|s| {
        let mut model = TokenTransformer::<_, f32>::new(s, base_config(), 9).unwrap();
        let (numbers, integers) = (s.alloc_zeroed::<f32>(100).unwrap(), s.alloc_zeroed::<i32>(10).unwrap());
        // Tokens, places, ends and labels. The first are right.
        for (k, [t, p, c, l]) in
            [[40, 16, 3, 2], [39, 16, 3, 2], [40, 17, 3, 2], [40, 16, 2, 2], [0, 0, 3, 2], [40, 16, 1, 0]]
                .into_iter()
                .enumerate()
        {
            let batch = DeviceBatch {
                tokens: numbers.slice(..t).unwrap(),
                position: numbers.slice(..p).unwrap(),
                cu_seqlens: integers.slice(..c).unwrap(),
                labels: integers.slice(..l).unwrap(),
                padded: true,
            };
            let step = model.step_on(&batch);
            assert!(if k == 0 { step.is_ok() } else { matches!(step, Err(Error::Batch(_))) }, "{k}: {step:?}");
        }
        assert_eq!(model.steps(), 1);
    });
}

/// Batches of many rows and batches of many sequences take turns, and both have room after the
/// first two.
#[test]
fn batches_of_other_shapes_use_the_same_room() {
    let device = Device::new_cpu().unwrap();
    let batch = |sequences: usize, rows: usize| {
        let ends = (0..=sequences).map(|i| (i * rows) as i32).collect::<Vec<_>>();
        (
            vec![0.5; sequences * rows * base_config().input_dim],
            vec![0.5; 2 * sequences * rows],
            ends,
            vec![1; sequences],
        )
    };
    let batches = [batch(2, 40), batch(12, 2)];
    let step = |train: &Stream<PerThread<'_>>| {
        let mut model = TokenTransformer::<_, f32>::new(train, base_config(), 1).unwrap();
        model.set_graphs(false);
        let mut round = || {
            for (tokens, position, cu_seqlens, labels) in &batches {
                model.step(&TokenBatch { tokens, position, cu_seqlens, labels }).unwrap().item().unwrap();
            }
        };
        round();
        device.limit_memory(Some(1)); // nothing more can be allocated
        round();
        device.limit_memory(None);
    };
    device.per_thread(step).unwrap();
}
