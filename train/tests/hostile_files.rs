//! Small files of models, checkpoints, heads and queries whose headers say anything. Each is an
//! error or a model that works, never a panic, and nothing is allocated that the file does not
//! justify.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use proptest::prelude::*;
use thalweg::simt::bf16;
use thalweg::{Device, Stream, stream_tags};
use thalweg_train::{
    Data, EncoderConfig, Error, Gelu, ImageEncoder, Tensors, TokenBatch, TokenTransformer, TokenTransformerConfig,
    VisionLanguage, VisionLanguageConfig,
};
use thalweg_vision::{Head, Query};

stream_tags!(Work);

/// The allocator of the system, which remembers the largest request of each thread and has no more
/// than 1 GiB. So memory that is asked for and never touched is noticed too.
struct Watched;

thread_local! {
    /// The threads of the CPU device, which may still run kernels of a file before, do not count.
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}
const MOST: usize = 1 << 30;

fn granted(bytes: usize) -> bool {
    LARGEST.set(LARGEST.get().max(bytes));
    bytes <= MOST
}

// SAFETY: Every request goes to the allocator of the system with the arguments of the caller, or
// fails by null, which the trait allows.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: The caller keeps the contract of `alloc`, which is that of the system's
        // allocator.
        if granted(layout.size()) { unsafe { System.alloc(layout) } } else { std::ptr::null_mut() }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: The same as in `alloc`.
        if granted(layout.size()) { unsafe { System.alloc_zeroed(layout) } } else { std::ptr::null_mut() }
    }
    unsafe fn realloc(&self, p: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: The caller keeps the contract, and `p` is from `alloc`, so from the system's
        // allocator.
        if granted(size) { unsafe { System.realloc(p, layout, size) } } else { std::ptr::null_mut() }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: The caller keeps the contract, and `p` is from the system's allocator.
        unsafe { System.dealloc(p, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

/// A tensor of a file as its header describes it.
#[derive(Clone, Debug)]
struct Entry {
    name: String,
    dtype: &'static str,
    shape: Vec<u64>,
    data: Vec<u8>,
    /// What the header says instead of where the data lie.
    offsets: [Option<u64>; 2],
}

/// A file that need not be one.
#[derive(Clone, Debug)]
struct Sketch {
    tensors: Vec<Entry>,
    metadata: BTreeMap<String, String>,
}

/// Extents, offsets and numbers of the metadata.
const NUMBERS: [u64; 10] = [0, 1, 2, 8, 1000, 1 << 32, 1 << 38, 1 << 50, 1 << 55, u64::MAX];
const WORDS: [&str; 8] = ["", "-1", "nan", "inf", "1e300", "tanh", "cls", "9223372036854775808"];
const TYPES: [&str; 9] = ["F32", "F64", "F16", "BF16", "I32", "I64", "U8", "BOOL", "F8_E4M3"];

impl Entry {
    /// Makes the data fit the shape, if that is small. So most headers are right about their data.
    fn fit(&mut self) {
        let size = match self.dtype {
            "F64" | "I64" => 8,
            "F32" | "I32" => 4,
            "F16" | "BF16" => 2,
            _ => 1,
        };
        let bytes = self.shape.iter().try_fold(size, |n: u64, &extent| n.checked_mul(extent));
        if let Some(bytes) = bytes.filter(|&bytes| bytes <= 1 << 14) {
            self.data.resize(bytes as usize, 0);
        }
    }
}

impl Sketch {
    fn of(file: &Tensors) -> Self {
        let entry = |(name, tensor): (&String, &thalweg_train::Tensor)| Entry {
            name: name.clone(),
            dtype: "F32",
            shape: tensor.shape.iter().map(|&extent| extent as u64).collect(),
            data: match &tensor.data {
                Data::F32(data) => data.iter().flat_map(|v| v.to_le_bytes()).collect(),
                other => panic!("{name} is {other:?}"),
            },
            offsets: [None, None],
        };
        Self { tensors: file.tensors.iter().map(entry).collect(), metadata: file.metadata.clone() }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut header = format!("{{\"__metadata__\":{:?}", self.metadata);
        let (mut at, mut data) = (0, Vec::new());
        for Entry { name, dtype, shape, data: own, offsets: [start, end] } in &self.tensors {
            let (first, last) = (at as u64, (at + own.len()) as u64);
            let offsets = [start.unwrap_or(first), end.unwrap_or(last)];
            header += &format!(",{name:?}:{{\"dtype\":{dtype:?},\"shape\":{shape:?},\"data_offsets\":{offsets:?}}}");
            at += own.len();
            data.extend_from_slice(own);
        }
        header.push('}');
        [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat()
    }
}

/// A change of a header. Numbers of tensors and dimensions count round and round.
#[derive(Clone, Debug)]
enum Change {
    /// The extents of a tensor.
    Shape {
        tensor: usize,
        shape: Vec<u64>,
    },
    /// One extent of a tensor.
    Extent {
        tensor: usize,
        dimension: usize,
        value: u64,
    },
    /// Every extent that equals one of this tensor, in all tensors: the file stays consistent.
    Everywhere {
        tensor: usize,
        dimension: usize,
        value: u64,
    },
    Type {
        tensor: usize,
        dtype: &'static str,
    },
    Offset {
        tensor: usize,
        end: bool,
        value: u64,
    },
    Removed {
        tensor: usize,
    },
    Metadata {
        key: usize,
        value: String,
    },
}

impl Change {
    fn apply(&self, file: &mut Sketch) {
        let n = file.tensors.len();
        match self {
            _ if n == 0 => {}
            Self::Shape { tensor, shape } => file.tensors[tensor % n].shape.clone_from(shape),
            &Self::Extent { tensor, dimension, value } => {
                let shape = &mut file.tensors[tensor % n].shape;
                if let Some(dimension) = dimension.checked_rem(shape.len()) {
                    shape[dimension] = value;
                }
            }
            &Self::Everywhere { tensor, dimension, value } => {
                let shape = &file.tensors[tensor % n].shape;
                let Some(dimension) = dimension.checked_rem(shape.len()) else { return };
                let old = shape[dimension];
                for extent in file.tensors.iter_mut().flat_map(|entry| &mut entry.shape) {
                    if *extent == old {
                        *extent = value;
                    }
                }
            }
            Self::Type { tensor, dtype } => file.tensors[tensor % n].dtype = dtype,
            &Self::Offset { tensor, end, value } => {
                file.tensors[tensor % n].offsets[usize::from(end)] = Some(value);
            }
            Self::Removed { tensor } => drop(file.tensors.remove(tensor % n)),
            Self::Metadata { key, value } => {
                let keys = file.metadata.len().max(1);
                if let Some((_, old)) = file.metadata.iter_mut().nth(key % keys) {
                    old.clone_from(value);
                }
            }
        }
        file.tensors.iter_mut().for_each(Entry::fit);
    }

    /// Changes by chance.
    fn any() -> impl Strategy<Value = Self> {
        let number = || prop::sample::select(&NUMBERS[..]);
        let (t, d) = (|| 0..1000usize, || 0..5usize);
        let value =
            prop_oneof![number().prop_map(|n| n.to_string()), prop::sample::select(&WORDS[..]).prop_map(Into::into)];
        prop_oneof![
            (t(), prop::collection::vec(number(), 0..6)).prop_map(|(tensor, shape)| Self::Shape { tensor, shape }),
            (t(), d(), number()).prop_map(|(tensor, dimension, value)| Self::Extent { tensor, dimension, value }),
            (t(), d(), number()).prop_map(|(tensor, dimension, value)| Self::Everywhere { tensor, dimension, value }),
            (t(), prop::sample::select(&TYPES[..])).prop_map(|(tensor, dtype)| Self::Type { tensor, dtype }),
            (t(), any::<bool>(), number()).prop_map(|(tensor, end, value)| Self::Offset { tensor, end, value }),
            t().prop_map(|tensor| Self::Removed { tensor }),
            (t(), value).prop_map(|(key, value)| Self::Metadata { key, value }),
        ]
    }
}

/// The changes of one place of a file, all of them.
fn single(file: &Sketch) -> Vec<Vec<Change>> {
    let mut all = Vec::new();
    for (tensor, entry) in file.tensors.iter().enumerate() {
        let shape = &entry.shape;
        for value in NUMBERS {
            for dimension in 0..shape.len() {
                all.push(vec![Change::Extent { tensor, dimension, value }]);
                all.push(vec![Change::Everywhere { tensor, dimension, value }]);
                // A file with a huge extent is consistent if another one is 0.
                for other in (0..shape.len()).filter(|&other| other != dimension) {
                    let mut shape = shape.clone();
                    (shape[dimension], shape[other]) = (value, 0);
                    all.push(vec![Change::Shape { tensor, shape }]);
                    let zero = Change::Everywhere { tensor, dimension: other, value: 0 };
                    all.push(vec![Change::Everywhere { tensor, dimension, value }, zero]);
                }
            }
            for end in [false, true] {
                all.push(vec![Change::Offset { tensor, end, value }]);
            }
        }
        for rank in 0..=5 {
            for value in [0, 1, 1 << 38, 1 << 55] {
                let mut shape = vec![value; rank];
                all.push(vec![Change::Shape { tensor, shape: shape.clone() }]);
                if let Some(last) = shape.last_mut() {
                    *last = 0;
                    all.push(vec![Change::Shape { tensor, shape }]);
                }
            }
        }
        all.extend(TYPES.map(|dtype| vec![Change::Type { tensor, dtype }]));
        all.push(vec![Change::Removed { tensor }]);
    }
    for key in 0..file.metadata.len() {
        let values = NUMBERS.map(|n| n.to_string()).into_iter().chain(WORDS.map(str::to_owned));
        all.extend(values.map(|value| vec![Change::Metadata { key, value }]));
    }
    all
}

/// What reads a file.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Model,
    Checkpoint,
    Encoder,
    VisionLanguage,
    /// The same with an image encoder.
    Pixels,
    Head,
    Query,
}

const KINDS: [Kind; 7] =
    [Kind::Model, Kind::Checkpoint, Kind::Encoder, Kind::VisionLanguage, Kind::Pixels, Kind::Head, Kind::Query];

struct Bench {
    s: Stream<Work>,
    path: PathBuf,
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Bench {
    fn new(name: &str) -> Self {
        let name = format!("thalweg-hostile-{}-{name}.safetensors", std::process::id());
        Self { s: Device::cpu().unwrap().stream::<Work>().unwrap(), path: std::env::temp_dir().join(name) }
    }

    /// A small file that is right.
    fn file(&self, kind: Kind) -> Sketch {
        let noise = |n: usize| (0..n).map(|i| (i * 37 % 101) as f32 / 101.0 - 0.5).collect::<Vec<_>>();
        let config = TokenTransformerConfig::default()
            .with_input_dim(3)
            .with_embed_dim(8)
            .with_num_heads(2)
            .with_depth(2)
            .with_num_classes(5);
        let model = || TokenTransformer::<_, f32>::new(&self.s, config, 1).unwrap();
        let mut tensors = Tensors::default();
        let mut add = |name: &str, shape: &[usize]| {
            tensors.insert(name, shape, noise(shape.iter().product()));
        };
        match kind {
            Kind::Model => return Sketch::of(&model().tensors().unwrap()),
            Kind::Checkpoint => {
                model().checkpoint(&self.path, &BTreeMap::new()).unwrap();
                return Sketch::of(&Tensors::load(&self.path).unwrap());
            }
            Kind::VisionLanguage | Kind::Pixels => {
                let shape = EncoderConfig::default()
                    .with_image_size(4)
                    .with_patch_size(2)
                    .with_embed_dim(8)
                    .with_num_heads(2)
                    .with_depth(1);
                let config = VisionLanguageConfig::default()
                    .with_image_encoder(matches!(kind, Kind::Pixels).then_some(shape))
                    .with_input_dim(3)
                    .with_embed_dim(8)
                    .with_num_heads(2)
                    .with_depth(1)
                    .with_text_embed_dim(12)
                    .with_text_num_heads(3)
                    .with_text_depth(1)
                    .with_vocab_size(9)
                    .with_max_tokens(6)
                    .with_norm_eps(1e-5)
                    .with_gelu(Gelu::Tanh);
                return Sketch::of(&config.init(1).unwrap());
            }
            Kind::Encoder => {
                let width = 8;
                add("patch_embed.proj.weight", &[width, 3, 2, 2]);
                add("patch_embed.proj.bias", &[width]);
                add("cls_token", &[1, 1, width]);
                add("pos_embed", &[1, 10, width]);
                for (name, outputs, inputs) in [
                    ("blocks.0.attn.qkv", 3 * width, width),
                    ("blocks.0.attn.proj", width, width),
                    ("blocks.0.mlp.fc1", 4 * width, width),
                    ("blocks.0.mlp.fc2", width, 4 * width),
                    ("head", 4, width),
                ] {
                    add(&format!("{name}.weight"), &[outputs, inputs]);
                    add(&format!("{name}.bias"), &[outputs]);
                }
                for name in ["blocks.0.norm1", "blocks.0.norm2", "norm"] {
                    add(&format!("{name}.weight"), &[width]);
                    add(&format!("{name}.bias"), &[width]);
                }
                tensors.metadata.insert("heads".into(), "2".into());
                tensors.metadata.insert("depth".into(), "1".into());
            }
            Kind::Head => {
                add("participatory_scorer.texture_proj.0.weight", &[64, 13, 1, 1]);
                add("participatory_scorer.texture_proj.0.bias", &[64]);
                add("participatory_scorer.texture_proj.2.weight", &[3, 64]);
                add("participatory_scorer.texture_proj.2.bias", &[3]);
            }
            Kind::Query => add("query", &[3]),
        }
        Sketch::of(&tensors)
    }

    /// Reads a file and uses what it makes. Also returns the largest allocation until then.
    fn read(&self, kind: Kind, bytes: &[u8]) -> (Result<(), Error>, usize) {
        fs::write(&self.path, bytes).unwrap();
        LARGEST.set(0);
        let mut largest = 0;
        let mut loaded = || largest = LARGEST.get();
        let s = &self.s;
        let ends = [0, 1, 3];
        let points = [0.5; 6];
        let mut run = || match kind {
            Kind::Model => {
                let mut model = TokenTransformer::<_, f32>::from_tensors(s, &Tensors::load(&self.path)?);
                loaded();
                let tokens = vec![0.5; 3 * model.as_mut().map_or(0, |model| model.config().input_dim)];
                let batch = TokenBatch { tokens: &tokens, position: &points, cu_seqlens: &ends, labels: &[] };
                model?.evaluate(&batch).map(drop)
            }
            Kind::Checkpoint => {
                let model = TokenTransformer::<_, bf16>::restore(s, &self.path);
                loaded();
                let mut model = model?.0;
                let tokens = vec![0.5; 3 * model.config().input_dim];
                let batch = TokenBatch { tokens: &tokens, position: &points, cu_seqlens: &ends, labels: &[0, 0] };
                (0..2).try_for_each(|_| model.step(&batch).map(drop))
            }
            Kind::Encoder => {
                let encoder = ImageEncoder::<_, f32>::from_tensors(s, &Tensors::load(&self.path)?);
                loaded();
                let mut encoder = encoder?;
                encoder.encode(&vec![0.5; 3 * encoder.config().image_size.pow(2)]).map(drop)
            }
            Kind::VisionLanguage => {
                let model = VisionLanguage::<_, f32>::from_tensors(s, &Tensors::load(&self.path)?);
                loaded();
                let mut model = model?;
                let tokens = vec![0.5; 3 * model.config().input_dim];
                model.generate(&tokens, &points, &[0], 1).map(drop)
            }
            Kind::Pixels => {
                let model = VisionLanguage::<_, f32>::from_tensors(s, &Tensors::load(&self.path)?);
                loaded();
                let mut model = model?;
                let size = model.config().image_encoder.map_or(0, |encoder| encoder.image_size);
                model.generate(&vec![0.5; 3 * size.pow(2)], &[], &[0], 1).map(drop)
            }
            Kind::Head => {
                let head = Head::from_safetensors(bytes);
                loaded();
                let head = head?;
                let query = Query::new(&vec![0.5; head.dimension()])?;
                Ok(head.projection(&query).map(drop)?)
            }
            Kind::Query => {
                let query = Query::from_safetensors(bytes);
                loaded();
                Ok(query.map(drop)?)
            }
        };
        let result = run();
        // What fails before has allocated all that it will.
        (result, if largest == 0 { LARGEST.get() } else { largest })
    }

    /// Applies changes to a file, and checks what becomes of it.
    fn check(&self, kind: Kind, good: &Sketch, changes: &[Change]) -> Result<(), Error> {
        let mut file = good.clone();
        changes.iter().for_each(|change| change.apply(&mut file));
        let bytes = file.bytes();
        let read = catch_unwind(AssertUnwindSafe(|| self.read(kind, &bytes)));
        let (result, largest) = read.unwrap_or_else(|_| panic!("{kind:?} panics after {changes:?}"));
        // Numbers become twice as wide at most. The rest is for what does not depend on the file.
        let justified = 4 * bytes.len() + (1 << 16);
        assert!(
            largest <= justified,
            "{kind:?} of {} bytes allocates {largest} after {changes:?}: {result:?}",
            bytes.len()
        );
        result
    }
}

#[test]
fn every_single_change_of_a_header_is_an_error_or_a_model() {
    let bench = Bench::new("single");
    for kind in KINDS {
        let good = bench.file(kind);
        bench.check(kind, &good, &[]).unwrap_or_else(|e| panic!("{kind:?} is right: {e}"));
        let changes = single(&good);
        let works = changes.iter().filter(|changes| bench.check(kind, &good, changes).is_ok()).count();
        println!("{kind:?}: {} files, of which {works} work", changes.len());
        // Some changes keep a file right, such as another type or a larger number of inputs.
        assert!(works > 0 && works < changes.len() / 2, "{kind:?}: {works} of {} work", changes.len());
    }
}

#[test]
fn several_changes_of_a_header_are_an_error_or_a_model() {
    let bench = Bench::new("several");
    let files = KINDS.map(|kind| bench.file(kind));
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) };
    let changes = (0..KINDS.len(), prop::collection::vec(Change::any(), 1..5));
    let run = proptest::test_runner::TestRunner::new(config).run(&changes, |(kind, changes)| {
        let _ = bench.check(KINDS[kind], &files[kind], &changes);
        Ok(())
    });
    run.unwrap_or_else(|e| panic!("{e}"));
}
