//! Runs the forward pass of a micro-batch beside the backward pass of the one before it.
//!
//! ```text
//! forward | f 0 | f 1 | f 2 | f 3 |                  | f 0 | ...     after the update
//! train         | b 0    | b 1    | b 2    | b 3    | update |
//! ```
//!
//! Both streams read the weights, which are [shared](thalweg::Shared) for that time. The update
//! needs them back for itself, and gets them only after every forward pass. So no forward pass can
//! meet the weights of the next step half written, and this is a rule of the types, not of this
//! function.

use thalweg::overlap::stages;
use thalweg::{Activity, LiveBrand, Ring, Stream, Timeline};
use thalweg_kernels::train::sum_rows;

use crate::batch::{Extent, HostBatch, MicroBatch};
use crate::error::{Error, Result};
use crate::model::PassOn;
use crate::optimizer::AdamW;
use crate::precision::Precision;
use crate::transformer::{Loss, MomentsOn, TokenTransformer};

/// Enqueues one step of the optimizer on several batches, whose gradients are added: the step of
/// one batch that holds all their sequences, in the memory of `slots` of them.
///
/// The forward passes run on the stream `forward`, and backward passes and update on the stream of
/// the model. With `slots` slots, forward passes are up to `slots - 1` micro-batches ahead. With
/// one slot, or with the stream of the model as `forward`, one pass runs at a time; the results are
/// the same, bit for bit. They are those of one large batch up to the rounding of sums.
///
/// The host waits for nothing, and allocates nothing after the first step if no batch is larger
/// than those before.
///
/// # Errors
/// There are no batches or no slots, `forward` is a stream of another device, a batch does not fit
/// the model, there is no memory, or the device failed. The weights and the optimizer are then
/// those of the step before.
///
/// ```
/// use thalweg::{Device, Timeline, stream_tags};
/// use thalweg_train::{TokenBatch, TokenTransformerConfig, TokenTransformer, overlap::micro_batches};
///
/// stream_tags!(Forward, Train);
/// let gpu = Device::best()?;
/// let (forward, train) = (gpu.stream::<Forward>()?, gpu.stream::<Train>()?);
/// let config = TokenTransformerConfig::default()
///     .with_input_dim(3)
///     .with_embed_dim(16)
///     .with_num_heads(2)
///     .with_depth(1)
///     .with_num_classes(2);
/// let mut model = TokenTransformer::<_, f32>::new(&train, config, 7)?;
/// let (tokens, position) = ([0.0, 0.5, 1.0, 1.0, 0.5, 0.0], [0.0, 0.0, 0.5, 0.5]);
/// let batch = |label: &'static [i32]| TokenBatch { tokens: &tokens, position: &position, cu_seqlens: &[0, 2], labels: label };
/// let batches = [batch(&[0]), batch(&[1]), batch(&[1])];
/// let first = micro_batches(&forward, &mut model, 2, &batches, &Timeline::disabled())?.item()?;
/// for _ in 0..20 {
///     micro_batches(&forward, &mut model, 2, &batches, &Timeline::disabled())?; // returns at once
/// }
/// assert!(micro_batches(&forward, &mut model, 2, &batches, &Timeline::disabled())?.item()? < first);
/// assert_eq!(model.steps(), 22); // of three batches each
/// # Ok::<(), thalweg_train::Error>(())
/// ```
pub fn micro_batches<F: LiveBrand, S: LiveBrand, E: Precision>(
    forward: &Stream<F>,
    model: &mut TokenTransformer<S, E>,
    slots: usize,
    batches: &[impl HostBatch],
    timeline: &Timeline,
) -> Result<Loss> {
    watched(forward, model, slots, batches, timeline, |_, _| ())
}

/// Does the work of [`micro_batches`](fn@micro_batches), and calls `before` before the backward
/// pass (`true`) or the forward pass of a micro-batch is enqueued. The tests hold a stream there.
#[doc(hidden)]
pub fn watched<F: LiveBrand, S: LiveBrand, E: Precision>(
    forward: &Stream<F>,
    model: &mut TokenTransformer<S, E>,
    slots: usize,
    batches: &[impl HostBatch],
    timeline: &Timeline,
    before: impl Fn(bool, usize),
) -> Result<Loss> {
    let extents = batches.iter().map(|batch| model.model.check(batch, true)).collect::<Result<Vec<_>>>()?;
    let fill = |s: &Stream<F>, k: usize, pass: &mut PassOn<F, E>| Ok(pass.upload(s, &batches[k], extents[k])?);
    accumulate((forward, forward), model, slots, &extents, fill, timeline, before)
}

/// Does the same as [`micro_batches`](fn@micro_batches) for micro-batches that a stage before makes
/// on the device: `input` enqueues on the stream `prepare` what fills each of them. `batches` has
/// the number of tokens and of sequences of each.
///
/// The stage may be ahead of the update: it reads no weights. A forward pass may not. Beside the
/// backward passes of the step before it would read stale weights and learn something else, so it
/// gets weights only after their update.
///
/// # Errors
/// The errors of [`micro_batches`](fn@micro_batches), and those of `input`. What the buffers hold
/// is not checked.
pub fn micro_batches_from<P: LiveBrand, F: LiveBrand, S: LiveBrand, E: Precision>(
    (prepare, forward): (&Stream<P>, &Stream<F>),
    model: &mut TokenTransformer<S, E>,
    slots: usize,
    batches: &[[usize; 2]],
    mut input: impl FnMut(&Stream<P>, usize, MicroBatch<'_, P>) -> Result<()>,
    timeline: &Timeline,
) -> Result<Loss> {
    if let Some([rows, sequences]) = batches.iter().find(|[rows, sequences]| *sequences == 0 || rows < sequences) {
        return Err(Error::Batch(format!("{rows} tokens in {sequences} sequences")));
    }
    let extents: Vec<_> =
        batches.iter().map(|&[rows, sequences]| Extent { rows, sequences, ..Extent::default() }).collect();
    model.model.check_parts(false, false)?;
    let inputs = model.config().input_dim;
    let fill = |s: &Stream<P>, k: usize, pass: &mut PassOn<P, E>| input(s, k, pass.input(inputs, extents[k])?);
    accumulate((prepare, forward), model, slots, &extents, fill, timeline, |_, _| ())
}

/// Enqueues a step on micro-batches of these extents, which `fill` brings into their passes.
fn accumulate<P: LiveBrand, F: LiveBrand, S: LiveBrand, E: Precision>(
    (prepare, forward): (&Stream<P>, &Stream<F>),
    model: &mut TokenTransformer<S, E>,
    slots: usize,
    batches: &[Extent],
    fill: impl FnMut(&Stream<P>, usize, &mut PassOn<P, E>) -> Result<()>,
    timeline: &Timeline,
    before: impl Fn(bool, usize),
) -> Result<Loss> {
    let most = batches.iter().copied().reduce(Extent::or);
    let (Some(most), 1..) = (most, slots) else {
        return Err(Error::Batch(format!("{} batches in {slots} slots", batches.len())));
    };
    let losses = batches.iter().map(|extent| extent.losses()).sum();
    let s = model.stream;
    for device in [prepare.device(), forward.device()] {
        if device != s.device() {
            // Slots of another device would never come to the model's stream.
            let (resource, stream) = (s.device().to_string(), device.to_string());
            return Err(thalweg::Error::DeviceMismatch { resource, stream }.into());
        }
    }
    let mut loss = s.bind(s.device().pinned::<f32>(1)?)?;
    model.make_scratch(most)?;
    make_slots(forward, model, slots, most)?;

    let TokenTransformer { model: net, optimizer, steps, state, scratch, passes, .. } = model;
    let (Some((_, scratch)), Some((mut parameters, mut moments))) = (scratch, state.take()) else {
        return Err(Error::Lost);
    };
    let prepared = parameters.round(&s).and_then(|()| optimizer.prepare(&s, *steps, &mut moments.adamw));
    let shared = match s.share(parameters) {
        Ok(shared) => shared,
        Err(returned) => {
            *state = Some((returned.value, moments));
            return Err(returned.error.into());
        }
    };
    let ran = prepared.map_err(Error::from).and_then(|()| {
        let (there, here) = (forward.reading(&shared)?, s.reading(&shared)?);
        stages::<_, Error>(&mut passes.1)
            .step(prepare, Activity::Upload, fill)
            .step(forward, Activity::Compute, |s, k, pass| {
                before(false, k);
                net.forward(s, there.view(), pass)?;
                Ok(net.loss(s, losses, pass)?)
            })
            .step(&s, Activity::Compute, |s, k, pass| {
                before(true, k);
                net.backward(s, here.view(), pass, scratch, &mut moments.gradient, k > 0)?;
                Ok(sum_rows(s, [1, 1], k > 0, &pass.loss, &mut scratch.sums.parts, &mut moments.loss)?)
            })
            .run(0..batches.len(), timeline)
    });
    // Only this gives the weights back to be written, and it waits for every forward pass.
    let mut parameters = s.unshare(shared)?;
    let updated = ran.and_then(|()| {
        timeline.span(&s, Activity::Compute, "update", || {
            let MomentsOn { adamw, gradient, .. } = &mut moments;
            AdamW::update_all(&s, optimizer.max_grad_norm, net.learned(), gradient, &mut parameters.values, adamw)
        })?;
        *steps += 1;
        Ok(s.copy_to_host(&moments.loss, &mut loss)?)
    });
    *state = Some((parameters, moments));
    updated?;
    Ok(Loss::new(s.record(loss)?))
}

/// Makes as many slots as are missing, or all of them if a batch is larger than those before.
fn make_slots<F: LiveBrand, S: LiveBrand, E: Precision>(
    forward: &Stream<F>,
    model: &mut TokenTransformer<S, E>,
    slots: usize,
    most: Extent,
) -> Result<()> {
    let (room, passes) = &mut model.passes;
    if !most.fits(*room) {
        *passes = Ring::default(); // their memory is free before the new one is allocated
        *room = room.or(most);
    }
    passes.truncate(slots);
    while passes.len() < slots {
        let pass = model.model.pass(forward, model.products, *room)?;
        passes.extend([forward.record(pass)?]);
    }
    Ok(())
}
