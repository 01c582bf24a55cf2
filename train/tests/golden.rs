//! The results that an independent program computed in f64 from `docs/training.md` alone: logits,
//! losses, gradients, and the weights after three steps, within the bounds that it states.

mod support;

use support::{devices, distance, golden, numbers, products};
use thalweg::simt::bf16;
use thalweg::{AnyStream, Device};
use thalweg_train::{AdamW, Batch, Data, ImageEncoder, Precision, Products, TokenTransformer};

/// Removes the third of a bias of Q, K and V that belongs to K: its gradient is zero, and what rounding
/// leaves of it is noise.
fn without_keys(name: &str, v: &[f32]) -> Vec<f32> {
    let third = v.len() / 3;
    if name.ends_with("qkv.bias") { [&v[..third], &v[2 * third..]].concat() } else { v.to_vec() }
}

/// Checks a model against the golden files. `bounds` are those of logits and losses, of gradients, and
/// of updates. Returns the bits of the logits.
fn check<E: Precision>(device: Device, products: Products, bounds: [f64; 3]) -> Vec<u32> {
    let (weights, file) = (golden("small/weights"), golden("small/batch"));
    let expected = golden("small/expected");
    AnyStream::new(device).unwrap().enter(|train| {
        let mut model = TokenTransformer::<_, E>::from_tensors(train, &weights).unwrap();
        model.set_products(products);
        *model.optimiser_mut() = AdamW { rate: 1e-3, weight_decay: 0.05, ..AdamW::default() };
        let rows = file.shape("tokens").unwrap()[0];
        let batch = Batch {
            tokens: file.f32("tokens", &[rows, model.config().inputs]).unwrap(),
            position: file.f32("position", &[rows, 2]).unwrap(),
            cu_seqlens: file.i32("cu_seqlens").unwrap(),
            labels: file.i32("labels").unwrap(),
        };
        let evaluation = model.evaluate(&batch).unwrap();
        let compare = |name: &str, got: &[f32], wanted: &[f32], bound: f64| {
            let error = distance(got, wanted);
            assert!(error <= bound, "{device}: {name} is off by {error:.2e}, and {bound:.0e} is allowed");
        };
        compare("logits", &evaluation.logits, &numbers(&expected, "logits"), bounds[0]);
        let mut seen = 0;
        for (name, tensor) in model.gradients(&batch).unwrap().tensors {
            let Data::F32(got) = tensor.data else { panic!("{name} has numbers") };
            let name = format!("grad.{name}");
            let wanted = numbers(&expected, &name);
            compare(&name, &without_keys(&name, &got), &without_keys(&name, &wanted), bounds[1]);
            seen += 1;
        }
        let mut losses: Vec<_> = (0..3).map(|_| model.step(&batch).unwrap().get().unwrap()).collect();
        losses.push(model.evaluate(&batch).unwrap().loss.unwrap());
        compare("losses", &losses, &numbers(&expected, "losses"), bounds[0]);
        let after = model.tensors().unwrap();
        for name in weights.tensors.keys() {
            let old = without_keys(name, &numbers(&weights, name));
            let update =
                |v: &[f32]| -> Vec<f32> { without_keys(name, v).iter().zip(&old).map(|(v, w)| v - w).collect() };
            let (got, wanted) = (numbers(&after, name), numbers(&expected, &format!("step3.{name}")));
            compare(&format!("the update of {name}"), &update(&got), &update(&wanted), bounds[2]);
            seen += 1;
        }
        assert_eq!(seen + 2, expected.tensors.len(), "every tensor of the file was compared");
        evaluation.logits.iter().map(|v| v.to_bits()).collect()
    })
}

/// Checks that a library computed something where a model was given one: its sums have another order.
fn others_compute(logits: &[Vec<u32>]) {
    if let [own, library] = logits {
        assert_ne!(own, library, "the library computed nothing");
    }
}

#[test]
fn three_steps_in_f32_agree_with_f64() {
    for &device in devices() {
        let logits = products(device).into_iter().map(|by| check::<f32>(device, by, [1e-5, 2e-4, 1e-3]));
        others_compute(&logits.collect::<Vec<_>>());
    }
}

#[test]
fn three_steps_in_bf16_agree_with_f64() {
    for &device in devices() {
        let logits = products(device).into_iter().map(|by| check::<bf16>(device, by, [2e-2, 5e-2, 1e-1]));
        others_compute(&logits.collect::<Vec<_>>());
    }
}

/// Checks the image encoder against the golden files.
fn encodes<E: Precision>(device: Device, products: Products, bound: f64) {
    let (weights, expected) = (golden("vit-timm/weights"), golden("vit-timm/expected"));
    AnyStream::new(device).unwrap().enter(|train| {
        // A state dict of timm has no metadata except the number of heads, which this file needs: they are
        // smaller than timm's.
        let mut bare = weights.clone();
        bare.metadata.retain(|key, _| key == "heads");
        for file in [weights, bare] {
            let mut encoder = ImageEncoder::<_, E>::from_tensors(train, &file).unwrap();
            encoder.set_products(products);
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
