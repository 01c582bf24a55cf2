//! The results that an independent program computed in f64 from `docs/training.md` alone: logits,
//! losses, gradients, and the weights after three steps, within the bounds that it states.

use testkit::devices::report;
use thalweg::simt::bf16;
use thalweg::{AnyStream, Device};
use thalweg_train::{
    AdamW, Data, Gated, HostBatch, ImageEncoder, MatmulBackend, Patches, Precision, Schedule, Tensors, TextBatch,
    TokenBatch, TokenTransformer,
};

use crate::support::{devices, distance, golden, numbers, products};

/// Removes the third of a bias of Q, K and V that belongs to K: its gradient is zero, and what
/// rounding leaves of it is noise.
fn without_keys(name: &str, v: &[f32]) -> Vec<f32> {
    let third = v.len() / 3;
    if name.ends_with("qkv.bias") { [&v[..third], &v[2 * third..]].concat() } else { v.to_vec() }
}

/// Checks a model against the golden files of a folder. `bounds` are those of logits and losses, of
/// gradients, and of updates. Returns the bits of the logits.
fn check<E: Precision>(device: Device, folder: &str, products: MatmulBackend, bounds: [f64; 3]) -> Vec<u32> {
    let [weights, file] = ["weights", "batch"].map(|name| golden(&format!("{folder}/{name}")));
    // A batch of pixels has no positions and no ends.
    let [tokens, position] = ["tokens", "position"].map(|name| match file.tensors.contains_key(name) {
        true => numbers(&file, name),
        false => Vec::new(),
    });
    let (tokens, position, cu_seqlens) = (&tokens[..], &position[..], file.i32("cu_seqlens").unwrap_or_default());
    let files = (folder, &weights);
    match file.i32("labels") {
        Ok(labels) => {
            let batch = TokenBatch { tokens, position, cu_seqlens, labels };
            agrees::<E>(device, files, products, &batch, bounds)
        }
        Err(_) => {
            let [ids, text_cu_seqlens, question] =
                ["ids", "text_cu_seqlens", "question"].map(|name| file.i32(name).unwrap());
            let batch = TextBatch { tokens, position, cu_seqlens, ids, text_cu_seqlens, question };
            let Ok(cu_patches) = file.i32("cu_patches") else {
                return agrees::<E>(device, files, products, &batch, bounds);
            };
            let of = |name| numbers(&file, name);
            let (features, entropy, salience, query) = (of("features"), of("entropy"), of("salience"), of("query"));
            let patch = file.i32("patch").unwrap();
            let (features, entropy, salience, query) = (&features[..], &entropy[..], &salience[..], &query[..]);
            let patches = Patches { features, entropy, salience, cu_patches, patch, query };
            agrees::<E>(device, files, products, &Gated { batch, patches }, bounds)
        }
    }
}

/// Does the same for a batch.
fn agrees<E: Precision>(
    device: Device,
    (folder, weights): (&str, &Tensors),
    products: MatmulBackend,
    batch: &impl HostBatch,
    bounds: [f64; 3],
) -> Vec<u32> {
    let expected = golden(&format!("{folder}/expected"));
    AnyStream::new(device).unwrap().enter(|train| {
        let mut model = TokenTransformer::<_, E>::from_tensors(train, weights).unwrap();
        model.set_matmul_backend(products);
        *model.optimizer_mut() = AdamW::default().with_lr(1e-3).with_weight_decay(0.05);
        let evaluation = model.evaluate(batch).unwrap();
        let compare = |name: &str, got: &[f32], wanted: &[f32], bound: f64| {
            let error = distance(got, wanted);
            assert!(error <= bound, "{device}, {folder}: {name} is off by {error:.2e}, and {bound:.0e} is allowed");
        };
        compare("logits", &evaluation.logits, &numbers(&expected, "logits"), bounds[0]);
        let mut seen = 0;
        for (name, tensor) in model.gradients(batch).unwrap().tensors {
            let Data::F32(got) = tensor.data else { panic!("{name} has numbers") };
            let name = format!("grad.{name}");
            let wanted = numbers(&expected, &name);
            compare(&name, &without_keys(&name, &got), &without_keys(&name, &wanted), bounds[1]);
            seen += 1;
        }
        let mut losses: Vec<_> = (0..3).map(|_| model.step(batch).unwrap().item().unwrap()).collect();
        losses.push(model.evaluate(batch).unwrap().loss.unwrap());
        compare("losses", &losses, &numbers(&expected, "losses"), bounds[0]);
        let after = model.tensors().unwrap();
        for name in weights.tensors.keys() {
            let [old, gradient] =
                [numbers(weights, name), numbers(&expected, &format!("grad.{name}"))].map(|v| without_keys(name, &v));
            let mean = gradient.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>() / gradient.len() as f64;
            let counts = |gradient: f32| match (folder, size_of::<E>()) {
                ("small", _) => true,
                // Places that no text has.
                (_, 4) => gradient != 0.0,
                // AdamW takes the sign of a gradient that is small beside the others of its tensor,
                // and rounding to bf16 decides it.
                _ => f64::from(gradient.abs()) >= bounds[1] * mean.sqrt(),
            };
            let update = |v: &[f32]| -> Vec<f32> {
                let all = without_keys(name, v).into_iter().zip(&old).zip(&gradient).filter(|(_, g)| counts(**g));
                all.map(|((v, w), _)| v - w).collect()
            };
            let (got, wanted) = (numbers(&after, name), numbers(&expected, &format!("step3.{name}")));
            compare(&format!("the update of {name}"), &update(&got), &update(&wanted), bounds[2]);
            seen += 1;
        }
        assert_eq!(seen + 2, expected.tensors.len(), "every tensor of the file was compared");
        evaluation.logits.iter().map(|v| v.to_bits()).collect()
    })
}

/// A token transformer, and vision-language models: one with heads of 64 numbers, and one of
/// `answers.py` with unlike lengths, several heads and the error function: without a gate, with one
/// whose balancer weighs by tensions, and with timm's vision transformer as the encoder.
const FOLDERS: [&str; 5] = ["small", "vlm-learn", "answers", "answers-gate", "answers-timm"];

/// Checks that a library computed something where a model was given one: its sums have another
/// order.
fn others_compute(logits: &[Vec<u32>]) {
    if let [own, library] = logits {
        assert_ne!(own, library, "the library computed nothing");
    }
}

#[test]
fn three_steps_in_f32_agree_with_f64() {
    for &device in devices() {
        for folder in FOLDERS {
            let logits = products(device).into_iter().map(|by| check::<f32>(device, folder, by, [1e-5, 2e-4, 1e-3]));
            others_compute(&logits.collect::<Vec<_>>());
        }
    }
}

#[test]
fn three_steps_in_bf16_agree_with_f64() {
    for &device in devices() {
        for folder in FOLDERS {
            let logits = products(device).into_iter().map(|by| check::<bf16>(device, folder, by, [2e-2, 5e-2, 1e-1]));
            others_compute(&logits.collect::<Vec<_>>());
        }
    }
}

/// Takes the steps of `losses.py`, which PyTorch took in f64, and compares the losses: all by their
/// norm, and each.
fn learns_as_pytorch<E: Precision>(device: Device, products: MatmulBackend, bounds: [f64; 2]) {
    let (weights, file) = (golden("small/weights"), golden("torch/losses"));
    let setting = |name: &str| file.metadata[name].parse::<f64>().unwrap();
    let [steps, warm_up, batches] = ["steps", "warm_up", "batches"].map(|name| setting(name) as u64);
    AnyStream::new(device).unwrap().enter(|train| {
        let mut model = TokenTransformer::<_, E>::from_tensors(train, &weights).unwrap();
        model.set_matmul_backend(products);
        *model.optimizer_mut() = AdamW::default()
            .with_lr(setting("rate"))
            .with_schedule(Schedule::Cosine { warmup_steps: warm_up, steps, end: 0.0 })
            .with_weight_decay(setting("weight_decay"))
            .with_max_grad_norm(Some(setting("clip")));
        let step = |n: u64| {
            let name = |part: &str| format!("{}.{part}", n % batches);
            let (tokens, position) = (numbers(&file, &name("tokens")), numbers(&file, &name("position")));
            let (cu_seqlens, labels) = (file.i32(&name("cu_seqlens")).unwrap(), file.i32(&name("labels")).unwrap());
            let batch = TokenBatch { tokens: &tokens, position: &position, cu_seqlens, labels };
            model.step(&batch).unwrap().item().unwrap()
        };
        // The checked device is slow, and takes the first steps only.
        let taken = if std::env::var_os("THALWEG_CHECK").is_some() { 4 } else { steps };
        let losses: Vec<f32> = (0..taken).map(step).collect();
        let wanted = numbers(&file, "losses");
        assert!(wanted[wanted.len() - 1] < 0.01 * wanted[0], "PyTorch has learned something");
        let wanted = &wanted[..losses.len()];
        // The last losses are a thousandth of the first ones, so each is also compared by itself.
        let off = losses.iter().zip(wanted).map(|(loss, wanted)| f64::from((loss - wanted).abs() / wanted));
        let errors = [distance(&losses, wanted), off.fold(0.0, f64::max)];
        let said = format!("{device}: {taken} losses are off by {:.2e}, one of them by {:.2e}", errors[0], errors[1]);
        report(&said);
        assert!(errors[0] <= bounds[0] && errors[1] <= bounds[1], "{said}, and {bounds:?} is allowed");
    });
}

#[test]
fn losses_are_those_of_pytorch() {
    for &device in devices() {
        for by in products(device) {
            learns_as_pytorch::<f32>(device, by, [1e-5, 1e-4]);
            learns_as_pytorch::<bf16>(device, by, [2e-2, 1e-1]);
        }
    }
}

/// Checks the image encoder against the golden files.
fn encodes<E: Precision>(device: Device, products: MatmulBackend, bound: f64) {
    let (weights, expected) = (golden("vit-timm/weights"), golden("vit-timm/expected"));
    AnyStream::new(device).unwrap().enter(|train| {
        // A state dict of timm has no metadata except the number of heads, which this file needs:
        // they are smaller than timm's.
        let mut bare = weights.clone();
        bare.metadata.retain(|key, _| key == "heads");
        for file in [weights, bare] {
            let mut encoder = ImageEncoder::<_, E>::from_tensors(train, &file).unwrap();
            encoder.set_matmul_backend(products);
            let encoding = encoder.encode(&numbers(&expected, "images")).unwrap();
            let logits = encoding.logits.unwrap();
            for (name, got) in [("features", &encoding.features), ("logits", &logits)] {
                let error = distance(got, &numbers(&expected, name));
                assert!(error <= bound, "{device}: {name} is off by {error:.2e}, and {bound:.0e} is allowed");
            }
        }
    });
}

#[test]
fn an_image_encoder_as_timms_agrees_with_f64() {
    for &device in devices() {
        for by in products(device) {
            encodes::<f32>(device, by, 1e-5);
            encodes::<bf16>(device, by, 2e-2);
        }
    }
}
