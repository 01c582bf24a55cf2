//! Measures the kernels that take a batch, with one launch for all its images: scores, balance,
//! allocation, the whole path to tokens, and the reference profile.

use testkit::oracle::{self, wide};
use thalweg::{DeviceBuffer, DeviceSlice, LiveBrand, On, Stream};
use thalweg_vision::kernels::{
    self, BatchLayout, Budget, ParticipatoryMut, RelevanceMut, Salience, Scores, Selection, SelectionMut, TokensMut,
};
use thalweg_vision::{Head, Layer, Pipeline, Query, TokenParams, arr_coc_0_1};

use crate::Result;
use crate::bencher::{Bench, Bencher, Buffer, compare};
use crate::images::Size;
use crate::kernels::{FIXATION, Scene, TOKENS, analyze_into};

/// Dimension of a query.
const DIMENSION: usize = 2048;

/// Times the kernels, and chains of them, launch by launch.
pub(crate) fn measure(bench: &mut Bencher, scene: &Scene) -> Result {
    stages(bench, scene)?;
    for (name, query) in [("image to tokens, graph", None), ("image to tokens, query, graph", Some(head()?))] {
        if bench.wants(name) {
            graphs(bench, scene, name, query)?;
        }
    }
    profile(bench, scene)
}

/// Measures the library's own path as graphs, one for each of the buffers that take turns.
fn graphs(bench: &mut Bencher, scene: &Scene, name: &str, query: Option<(Head, Query)>) -> Result {
    let Scene { size: Size { images, height, width, .. }, content, .. } = *scene;
    let stream = bench.stream;
    let mut pipeline = Pipeline::new(bench.device, TokenParams::default().with_budget(TOKENS as u64))?;
    if let Some((head, query)) = &query {
        pipeline = pipeline.with_query(head, query)?;
    }
    let mut turns = vec![];
    for i in 0..scene.turns() {
        let mut rgb = stream.alloc(scene.batch(i).len())?;
        stream.copy(scene.batch(i), &mut rgb)?;
        let workspace = pipeline.workspace(&stream, &vec![thalweg::Size::new(height, width); images])?;
        let captured = stream.capture((rgb, workspace), |s, (rgb, workspace)| workspace.enqueue(s, rgb))?;
        turns.push((captured.0, Some(captured.1)));
    }
    let n = turns.len();
    let time = bench.time(1, |i| {
        let (graph, bundle) = &mut turns[i % n];
        let whole = bundle.take().ok_or("an earlier replay failed")?;
        *bundle = Some(stream.replay(graph, whole)?);
        Ok(())
    })?;
    // Read the first buffer. If there are many buffers and few runs, the last one was never used.
    for (_, bundle) in &turns[..1] {
        let (_, workspace) = bundle.as_ref().ok_or("an earlier replay failed")?;
        let counts = stream.read_blocking(workspace.counts())?;
        assert!((1..=(images * TOKENS) as u32).contains(&counts[0]), "{counts:?}");
    }
    bench.row(name, content, scene.size.name, time, 3 * scene.size.pixels() + 60 * TOKENS * images)
}

fn stages(bench: &mut Bencher, scene: &Scene) -> Result {
    let Scene { size: Size { name, .. }, content, .. } = *scene;
    let (n, stream, image) = (scene.layout.patches() as usize, bench.stream, 3 * scene.size.pixels());
    // These numbers count words of 4 bytes: the features, maps and sides of a patch, and the
    // weights. The cache holds what the previous kernel wrote, as it does in the pipeline.
    let weights = COUPLING + PREDICTOR;
    let tokens = 60 * TOKENS * scene.size.images;
    type Step = fn(&mut Work<Bench>, &Stream<Bench>, &Buffer<u8>) -> Result;
    let steps: [(&str, usize, usize, Step); 8] = [
        // For a single image, it was measured and checked above.
        ("analyze", 1, image, |w, s, rgb| w.analyze(s, rgb)),
        ("relevance", 1, 4 * 5 * n, |w, s, _| w.relevance(s)),
        ("participatory", 1, 4 * (16 * n + COUPLING), |w, s, _| w.participatory(s)),
        ("balance", 1, 4 * (12 * (n / 64 + scene.size.images) + PREDICTOR), |w, s, _| w.balance(s)),
        ("relevance_with_query", 1, 4 * 4 * n, |w, s, _| w.relevance_with_query(s)),
        ("allocate", 1, 4 * 2 * n, |w, s, _| w.allocate(s)),
        ("scores + balance + allocate", 4, 4 * (22 * n + weights), |w, s, _| {
            w.query_scores(s)?;
            w.allocate(s)
        }),
        ("image to tokens, fused", 4, image + tokens, |w, s, rgb| w.path(s, rgb)),
    ];
    let wanted = |(kernel, ..): &(&str, usize, usize, Step)| {
        bench.wants(kernel) && !(*kernel == "analyze" && scene.size.images == 1)
    };
    let steps: Vec<_> = steps.into_iter().filter(wanted).collect();
    if steps.is_empty() {
        return Ok(());
    }
    let mut work = Work::new(&stream, scene.layout.clone())?;
    work.path(&stream, scene.batch(0))?;
    work.check(&stream)?;
    work.query_scores(&stream)?;
    for (kernel, launches, bytes, step) in steps {
        // A step that runs alone divides salience again and again. So compute the scores anew
        // before the next one.
        work.query_scores(&stream)?;
        let time = bench.time(launches, |i| step(&mut work, &stream, scene.batch(i)))?;
        bench.row(kernel, content, name, time, bytes)?;
    }
    Ok(())
}

/// Measures the reference profile, with a head that has a balancer.
fn profile(bench: &mut Bencher, scene: &Scene) -> Result {
    if !bench.wants("arr-coc-0-1") {
        return Ok(());
    }
    let Scene { size: Size { name, images, height, width }, content, .. } = *scene;
    let stream = bench.stream;
    let (head, query) = head()?;
    let profile = arr_coc_0_1::Profile::new(bench.device, &head, &query)?;
    let start = |b: usize| scene.layout.byte_range(b).start as u32;
    let table: Vec<u32> = (0..images).flat_map(|b| [start(b), height, width]).collect();
    let table = stream.upload_blocking(&table)?;
    let mut maps = profile.alloc(&stream, images)?;
    let time = bench.time(6, |i| Ok(profile.enqueue(&stream, &table, scene.batch(i), &mut maps)?))?;
    let best = stream.read_blocking(&maps.topk)?;
    assert!(best.iter().all(|i| (0..1024).contains(i)), "patches of the profile");
    // The profile reads only samples of the image, so a number of bytes would say little.
    bench.row("arr-coc-0-1", content, name, time, 0)
}

/// Makes a head with a balancer, and a query, of arbitrary numbers.
fn head() -> Result<(Head, Query)> {
    let noise = |n: usize, scale: f32| {
        (0..n).map(move |i| (((i * 7919 + 13) % 2003) as f32 / 1001.5 - 1.0) * scale).collect::<Vec<_>>()
    };
    let layer =
        |outputs: usize, inputs: usize| [noise(outputs * inputs, (inputs as f32).powf(-0.5)), noise(outputs, 0.1)];
    let [hidden, projection] = [layer(64, 13), layer(DIMENSION, 64)];
    let balancer = [layer(128, 9 + DIMENSION), layer(128, 128), layer(3, 128)];
    fn borrow([weight, bias]: &[Vec<f32>; 2]) -> Layer<'_> {
        Layer { weight, bias }
    }
    let head = Head::new(borrow(&hidden), borrow(&projection))?.with_balancer(balancer.each_ref().map(borrow))?;
    Ok((head, Query::new(&noise(DIMENSION, 1.0))?))
}

/// The number of floats that `Head` makes of its weights and a query.
const COUPLING: usize = 3400;
const PREDICTOR: usize = 18179;

/// The buffers of everything after the textures, and a function for each kernel: a batch in each
/// launch.
struct Work<S: LiveBrand> {
    layout: BatchLayout,
    params: TokenParams,
    /// The most patches that can be selected, and tokens.
    capacity: [usize; 2],
    table: Owned<S, u32>,
    features: Owned<S, f32>,
    entropy: Owned<S, f32>,
    participatory: Owned<S, f32>,
    salience: Owned<S, f32>,
    summaries: Owned<S, f32>,
    mix: Owned<S, f32>,
    relevance: Owned<S, f32>,
    coupling: Owned<S, f32>,
    predictor: Owned<S, f32>,
    gains: Owned<S, u32>,
    sides: Owned<S, i32>,
    cu_seqlens: Owned<S, i32>,
    patch_id: Owned<S, i32>,
    counts: Owned<S, u32>,
    image_cu_seqlens: Owned<S, i32>,
    image_cu_patches: Owned<S, i32>,
    tokens: Owned<S, f32>,
    position: Owned<S, f32>,
}

type Owned<S, T> = On<S, DeviceBuffer<T>>;

impl<S: LiveBrand> Work<S> {
    fn new(stream: &Stream<S>, layout: BatchLayout) -> Result<Self> {
        let (n, images) = (layout.patches() as usize, layout.images() as usize);
        let params = TokenParams::default().with_patch(layout.patch()).with_budget(TOKENS as u64);
        let (lo, hi) = (*params.sides.start(), *params.sides.end());
        let capacity = [n.min(images * (TOKENS / (lo * lo) as usize)), images * TOKENS];
        let (head, query) = head()?;
        let predictor = head.balancer_weights(&query)?.ok_or("a head with a balancer has a predictor")?;
        let coupling = head.projection(&query)?;
        assert_eq!([coupling.len(), predictor.len()], [COUPLING, PREDICTOR]);
        Ok(Self {
            table: stream.upload_blocking(layout.table())?,
            features: stream.alloc(13 * n)?,
            entropy: stream.alloc(n)?,
            participatory: stream.alloc(n)?,
            salience: stream.alloc(n)?,
            summaries: stream.alloc(12 * (n / 64 + images))?,
            mix: stream.alloc(3 * images)?,
            relevance: stream.alloc(n)?,
            coupling: stream.upload_blocking(&coupling)?,
            predictor: stream.upload_blocking(&predictor)?,
            gains: stream.upload_blocking(&kernels::gains(lo, hi, params.focus))?,
            sides: stream.alloc(n)?,
            cu_seqlens: stream.alloc(capacity[0] + 1)?,
            patch_id: stream.alloc(capacity[0])?,
            counts: stream.alloc(2)?,
            image_cu_seqlens: stream.alloc(images + 1)?,
            image_cu_patches: stream.alloc(images + 1)?,
            tokens: stream.alloc_zeroed(13 * capacity[1])?,
            position: stream.alloc_zeroed(2 * capacity[1])?,
            capacity,
            params,
            layout,
        })
    }

    fn analyze(&mut self, stream: &Stream<S>, rgb: &DeviceSlice<S, u8>) -> Result {
        analyze_into(stream, &self.layout, &self.table, rgb, &mut self.features, &mut self.entropy)
    }

    fn relevance(&mut self, stream: &Stream<S>) -> Result {
        let batch = self.layout.batch(&self.table);
        let out = RelevanceMut { salience: &mut self.salience, relevance: &mut self.relevance };
        Ok(kernels::relevance(stream, &batch, 0.0, [0.5, 0.5], &self.features, &self.entropy, out)?)
    }

    fn participatory(&mut self, stream: &Stream<S>) -> Result {
        let batch = self.layout.batch(&self.table);
        let how = Salience { edge: kernels::EDGE, least_peak: 0.0, foveal_bias: 0.0 };
        let out = ParticipatoryMut {
            participatory: &mut self.participatory,
            salience: &mut self.salience,
            summaries: &mut self.summaries,
        };
        Ok(kernels::participatory(stream, &batch, how, &self.features, &self.entropy, &self.coupling, out)?)
    }

    fn balance(&mut self, stream: &Stream<S>) -> Result {
        let batch = self.layout.batch(&self.table);
        Ok(kernels::balance(stream, &batch, &self.summaries, &self.predictor, false, &mut self.mix)?)
    }

    fn relevance_with_query(&mut self, stream: &Stream<S>) -> Result {
        let batch = self.layout.batch(&self.table);
        let scores = Scores {
            entropy: &self.entropy,
            participatory: &self.participatory,
            summaries: &self.summaries,
            mix: &self.mix,
        };
        let out = RelevanceMut { salience: &mut self.salience, relevance: &mut self.relevance };
        Ok(kernels::relevance_with_query(stream, &batch, &scores, out)?)
    }

    /// The three of a query.
    fn query_scores(&mut self, stream: &Stream<S>) -> Result {
        self.participatory(stream)?;
        self.balance(stream)?;
        self.relevance_with_query(stream)
    }

    fn allocate(&mut self, stream: &Stream<S>) -> Result {
        let batch = self.layout.batch(&self.table);
        let sides = &self.params.sides;
        let budget = Budget { lo: *sides.start(), hi: *sides.end(), tokens: self.params.budget };
        let out = SelectionMut {
            sides: &mut self.sides,
            cu_seqlens: &mut self.cu_seqlens,
            patch_id: &mut self.patch_id,
            counts: &mut self.counts,
            image_cu_seqlens: &mut self.image_cu_seqlens,
            image_cu_patches: &mut self.image_cu_patches,
        };
        Ok(kernels::allocate(stream, &batch, budget, &self.relevance, &self.gains, out)?)
    }

    fn compress_fused(&mut self, stream: &Stream<S>, rgb: &DeviceSlice<S, u8>) -> Result {
        let [selected, tokens] = self.capacity;
        let (batch, pixels) = (self.layout.batch(&self.table), self.layout.pixels(rgb, [FIXATION; 2]));
        let selection = Selection {
            sides: &self.sides,
            cu_seqlens: &self.cu_seqlens,
            patch_id: &self.patch_id,
            counts: &self.counts,
            most: selected as u32,
        };
        let out = TokensMut { tokens: &mut self.tokens, position: &mut self.position, capacity: tokens as u32 };
        Ok(kernels::compress_fused(stream, &batch, &pixels, &selection, out)?)
    }

    /// Everything from images to their tokens, without a query.
    fn path(&mut self, stream: &Stream<S>, rgb: &DeviceSlice<S, u8>) -> Result {
        self.analyze(stream, rgb)?;
        self.relevance(stream)?;
        self.allocate(stream)?;
        self.compress_fused(stream, rgb)
    }

    /// Compares each image's relevance with the oracle's for the same features; and the allocation,
    /// bit for bit, with the oracle's for the same relevance.
    fn check(&self, stream: &Stream<S>) -> Result {
        let [features, entropy, relevance] =
            [&self.features, &self.entropy, &self.relevance].map(|map| stream.read_blocking(map));
        let (features, entropy, relevance) = (wide(&features?), wide(&entropy?), relevance?);
        let (lo, hi) = (*self.params.sides.start(), *self.params.sides.end());
        let mut wanted = (vec![], vec![0], vec![]); // sides, offsets, patches
        for b in 0..self.layout.images() as usize {
            let patches = self.layout.patch_range(b);
            let salience = oracle::salience(&features[13 * patches.start..13 * patches.end], 0.0);
            let (want, _) = oracle::relevance(&[&entropy[patches.clone()], &salience], &[0.5, 0.5]);
            compare("relevance", &relevance[patches.clone()], &want, 1e-3)?;
            let sides = oracle::allocate(&relevance[patches.clone()], lo, hi, self.params.budget, self.params.focus);
            for (id, side) in patches.zip(sides) {
                let side = side as i32;
                wanted.0.push(side);
                if side > 0 {
                    wanted.1.push(wanted.1[wanted.1.len() - 1] + side * side);
                    wanted.2.push(id as i32);
                }
            }
        }
        let counts = stream.read_blocking(&self.counts)?;
        let (tokens, selected) = (counts[0] as usize, counts[1] as usize);
        let same = stream.read_blocking(&self.sides)? == wanted.0
            && stream.read_blocking(&self.cu_seqlens)?.get(..=selected) == Some(&wanted.1)
            && stream.read_blocking(&self.patch_id)?.get(..selected) == Some(&wanted.2);
        // Red, the first plane of a token, is a mean of channels.
        let values = stream.read_blocking(&self.tokens)?;
        let likely = values.chunks(13).take(tokens).all(|token| (0.0..=1.0001).contains(&token[0]));
        if !same || !likely {
            return Err("allocation or tokens are wrong: nothing wrong is timed".into());
        }
        Ok(())
    }
}
