//! Section 4: how many tokens each patch gets.

/// The gain of each step, `g_lo` to `g_hi`.
pub fn gains(lo: u32, hi: u32, focus: f64) -> Vec<u32> {
    let utility = |n: u32| f64::from(n * n).powf(focus);
    let first = utility(lo) / f64::from(lo * lo);
    let mut all = vec![65535];
    let mut least = 65535;
    for n in lo + 1..=hi {
        let slope = (utility(n) - utility(n - 1)) / f64::from(2 * n - 1);
        let gain = (65535.0 * slope / first + 0.5).floor() as u32;
        least = gain.min(least);
        all.push(least);
    }
    all
}

/// Relevance as the integer 1..=65535 that keys are made of.
///
/// In f64 the sum is exact wherever its floor could change, so this is the definition over real
/// numbers; in f32 it is not (the sum can round up to the next integer).
pub fn quantize(relevance: f32) -> u32 {
    (65535.0 * f64::from(relevance) + 0.5).floor().clamp(1.0, 65535.0) as u32
}

/// One rise of one patch: to side `to`, for `cost` tokens more.
struct Step {
    key: u32,
    patch: usize,
    to: u32,
    cost: u64,
}

/// The side of each patch `[N]`, 0 for none: all steps by falling key, taken until one does not
/// fit.
///
/// That is the definition by thresholds: t* - 1 is the key of the first step that does not fit, the
/// steps of greater key all fit, and those of that key come in raster order. A patch's own steps
/// stay in order because gains never rise and the sort is stable.
pub fn allocate(relevance: &[f32], lo: u32, hi: u32, budget: u64, focus: f64) -> Vec<u32> {
    let gains = gains(lo, hi, focus);
    let mut steps = Vec::new();
    for (patch, &r) in relevance.iter().enumerate() {
        for (to, gain) in (lo..=hi).zip(&gains) {
            let below = if to == lo { 0 } else { to - 1 };
            let cost = u64::from(to * to - below * below);
            let key = quantize(r) * gain;
            steps.push(Step { key, patch, to, cost });
        }
    }
    steps.retain(|step| step.key >= 1); // a threshold is at least 1, so a step of no gain is never taken
    steps.sort_by_key(|step| std::cmp::Reverse(step.key));

    let mut sides = vec![0; relevance.len()];
    let mut left = budget;
    for step in steps {
        if step.cost > left {
            break;
        }
        left -= step.cost;
        sides[step.patch] = step.to;
    }
    sides
}
