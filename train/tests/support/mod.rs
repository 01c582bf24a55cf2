//! What the tests share.
#![allow(dead_code, unreachable_pub, unused_imports)] // each test uses a part

use std::path::Path;

pub use testkit::devices::{devices, on_each_device};
use thalweg::Device;
use thalweg_train::{Data, Gelu, MatmulBackend, Pooling, Tensors, TokenBatch, TokenTransformerConfig};

/// A small model.
pub fn base_config() -> TokenTransformerConfig {
    TokenTransformerConfig::default()
        .with_input_dim(5)
        .with_embed_dim(16)
        .with_num_heads(2)
        .with_depth(2)
        .with_num_classes(4)
        .with_norm_eps(1e-5)
        .with_gelu(Gelu::Tanh)
        .with_pooling(Pooling::Mean)
}

/// Returns what can compute the products of models on a device: thalweg's kernels, and cuBLASLt if
/// it is there.
pub fn products(device: Device) -> Vec<MatmulBackend> {
    let library = MatmulBackend::cublaslt(device);
    match &library {
        Ok(library) => testkit::devices::report(&format!("covered: {library:?} on {device}")),
        Err(why) => testkit::devices::report(&format!("NOT COVERED: cuBLASLt on {device}: {why}")),
    }
    [MatmulBackend::default()].into_iter().chain(library).collect()
}

/// Reads a golden file. In a bundle without cargo the current folder is that of the repository.
pub fn golden(name: &str) -> Tensors {
    let paths = ["tests", "train/tests"].map(|folder| format!("{folder}/golden/{name}.safetensors"));
    let found = paths.iter().find(|path| Path::new(path).exists());
    Tensors::load(found.unwrap_or_else(|| panic!("no file {paths:?}"))).unwrap()
}

/// Returns the numbers of a tensor.
pub fn numbers(tensors: &Tensors, name: &str) -> Vec<f32> {
    match &tensors.tensors[name].data {
        Data::F32(data) => data.clone(),
        other => panic!("{name} is {other:?}"),
    }
}

/// Returns the names of all tensors, and the bits of their numbers.
pub fn bits(tensors: &Tensors) -> Vec<(String, Vec<u32>)> {
    let bits = |name| numbers(tensors, name).iter().map(|v| v.to_bits()).collect();
    tensors.tensors.keys().map(|name| (name.clone(), bits(name))).collect()
}

/// Returns the norm of the difference over the norm of what is wanted.
pub fn distance(got: &[f32], wanted: &[f32]) -> f64 {
    assert_eq!(got.len(), wanted.len());
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|v| v * v).sum::<f64>().sqrt();
    let pairs = got.iter().zip(wanted);
    let off = norm(&mut pairs.map(|(g, w)| f64::from(*g) - f64::from(*w)));
    off / norm(&mut wanted.iter().map(|w| f64::from(*w))).max(1e-12)
}

/// Random numbers (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// From -1 to 1.
    pub fn number(&mut self) -> f32 {
        (self.word() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
    pub fn numbers(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.number()).collect()
    }
    pub fn below(&mut self, n: usize) -> usize {
        (self.word() % n as u64) as usize
    }
}

/// A random batch, with sequences of 1 to 9 tokens.
pub struct Sample {
    pub tokens: Vec<f32>,
    pub position: Vec<f32>,
    pub cu_seqlens: Vec<i32>,
    pub labels: Vec<i32>,
}

impl Sample {
    pub fn new(inputs: usize, classes: usize, sequences: usize, seed: u64) -> Self {
        let mut random = Random(seed);
        let mut cu_seqlens = vec![0];
        for n in 0..sequences {
            cu_seqlens.push(cu_seqlens[n] + 1 + random.below(9) as i32);
        }
        let rows = cu_seqlens[sequences] as usize;
        let labels = (0..sequences).map(|_| random.below(classes) as i32).collect();
        Self { tokens: random.numbers(rows * inputs), position: random.numbers(2 * rows), cu_seqlens, labels }
    }

    pub fn batch(&self) -> TokenBatch<'_> {
        let Self { tokens, position, cu_seqlens, labels } = self;
        TokenBatch { tokens, position, cu_seqlens, labels }
    }
}
