//! What the tests of all patterns share.

use thalweg::{AnyStream, Device, DeviceKind, HostWait, LiveBrand, Stream};
use thalweg_train::{AdamW, Loss, Precision, Schedule, TokenTransformer, TokenTransformerConfig};

use crate::support::{bits, devices};

pub(crate) fn optimizer() -> AdamW {
    AdamW::default()
        .with_schedule(Schedule::Cosine { warmup_steps: 2, steps: 8, end: 0.1 })
        .with_max_grad_norm(Some(0.5))
}

pub(crate) fn lanes<const N: usize>(device: Device) -> [AnyStream; N] {
    [(); N].map(|()| AnyStream::new(device).unwrap())
}

pub(crate) fn synchronize(lane: &AnyStream) {
    lane.enter(|s| s.synchronize()).unwrap();
}

pub(crate) fn done(lanes: &[AnyStream]) -> Vec<bool> {
    lanes.iter().map(|lane| lane.enter(|s| s.is_complete()).unwrap()).collect()
}

/// Runs a check on every device, and on ten schedules of a seeded one, which runs work late and out
/// of order wherever no event forbids it.
pub(crate) fn everywhere_and_seeded(mut check: impl FnMut(Device)) {
    devices().iter().for_each(|&device| check(device));
    let device = Device::seeded_cpu(0).unwrap();
    for seed in 0..10 {
        device.reseed(seed);
        check(device);
    }
}

/// The losses and the weights of a run, as bits.
pub(crate) type Bits = (Vec<u32>, Vec<(String, Vec<u32>)>);

pub(crate) fn model<S: LiveBrand, E: Precision>(
    s: &Stream<S>,
    config: TokenTransformerConfig,
) -> TokenTransformer<S, E> {
    let mut model = TokenTransformer::new(s, config, 3).unwrap();
    *model.optimizer_mut() = optimizer();
    model
}

pub(crate) fn results<S: LiveBrand, E: Precision>(losses: Vec<Loss>, model: &TokenTransformer<S, E>) -> Bits {
    let losses = losses.into_iter().map(|loss| loss.item().unwrap().to_bits()).collect();
    (losses, bits(&model.tensors().unwrap()))
}

/// Returns the calls that made the host wait or made memory, while `work` ran.
pub(crate) fn stalls(device: Device, work: impl FnOnce()) -> Vec<(HostWait, u64)> {
    device.sync_stats().enable();
    if device.kind() == DeviceKind::Cpu {
        device.limit_memory(Some(1)); // nothing more can be allocated
    }
    work();
    device.limit_memory(None);
    device.sync_stats().disable();
    device.sync_stats().report().waits().iter().map(|stalls| (stalls.kind, stalls.count)).collect()
}

/// Fills the pools of page-locked memory and of events with more than a test has under way, so that
/// the steady state does not depend on how far the host was ahead before. Blocks of these sizes
/// serve requests of any size up to the largest.
pub(crate) fn stock<S: LiveBrand>(s: &Stream<S>) {
    let device = s.device();
    let memory: Vec<_> = (0..19).flat_map(|n| [1usize << n; 60]).map(|len| device.pinned::<u8>(len).unwrap()).collect();
    let events: Vec<_> = (0..500).map(|_| s.record(s.alloc::<u8>(0).unwrap()).unwrap()).collect();
    s.synchronize().unwrap();
    drop((memory, events));
}

/// The devices of the steady state: GPUs, and a CPU device that no other test uses.
pub(crate) fn own_devices() -> Vec<Device> {
    let gpus = devices().iter().copied().filter(|d| d.kind() == DeviceKind::Cuda);
    gpus.chain([Device::new_cpu().unwrap()]).collect()
}
