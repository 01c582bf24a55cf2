//! What a step does to the buffers: fills, kernels, copies, the host's reads and writes, frames and
//! host functions.

use thalweg::{DeviceKind, LiveBrand, Region, kernel};

use super::failure::{Outcome, equal};
use super::program::{FRAME, spans};
use super::slots::State;
use super::three::{Of, both, each, on, with};
use super::world::{Pair, World, note};

kernel! {
    unsafe fn add(cx: impl Simt, n: u32, v: u32, x: InOut<u32>)
    require { x.len() == n }
    grid(n.div_ceil(64)) block(64)
    {
        let i = cx.global_x();
        if i < n {
            x.set(cx, i as usize, x.get(cx, i as usize).wrapping_add(v));
        }
    }
}

kernel! {
    unsafe fn mix(cx: impl Simt, n: u32, x: In<u32>, y: InOut<u32>)
    require { x.len() == n, y.len() == n }
    grid(n.div_ceil(64)) block(64)
    {
        let i = cx.global_x();
        if i < n {
            let i = i as usize;
            y.set(cx, i, y.get(cx, i).wrapping_mul(3).wrapping_add(x.get(cx, i)));
        }
    }
}

/// Copies a range by rows of four elements, two columns at a time, and then what is left over.
macro_rules! by_rows {
    ($s:ident, $copy_region:ident, $copy:ident, ($x:ident, $from:ident), ($y:ident, $to:ident)) => {{
        let rows = $from.len() / 4;
        for columns in [0..2, 2..4] {
            let part = Region::new(rows, 4).crop(.., columns)?;
            $s.$copy_region($x, part.offset($from.start), $y, part.offset($to.start))?;
        }
        $s.$copy($x.slice($from.start + 4 * rows..$from.end)?, $y.slice_mut($to.start + 4 * rows..$to.end)?)?
    }};
}

impl<A: LiveBrand, B: LiveBrand, C: LiveBrand> World<A, B, C> {
    pub(crate) fn fill(&mut self, i: usize, t: usize, how: u8) -> Outcome {
        note!(self, "fill device {i} on {t}: {how}");
        let slot = &mut self.buffers[i];
        if !self.on.bring(slot, t, how / 4)? {
            return Ok(());
        }
        let (_, to) = spans(slot.len() / usize::from(1 + how % 2), slot.len(), how);
        let mut x = slot.take_on();
        let v = self.number();
        each!(self.on, &mut x, |s, x| s.fill(x.slice_mut(to.clone())?, v)?);
        let slot = &mut self.buffers[i];
        slot.want[to].fill(v);
        slot.state = State::On(x);
        Ok(())
    }

    /// Launches a kernel with one buffer or two. These kernels have no PTX for a GPU, so a copy
    /// replaces them there.
    pub(crate) fn launch(&mut self, i: usize, j: usize, t: usize, how: u8) -> Outcome {
        note!(self, "launch on device {i}, {j} on {t}: {how}");
        if self.device.kind() == DeviceKind::Cuda {
            return self.copy(i, j, t, how);
        }
        if !self.on.bring(&mut self.buffers[j], t, how / 4)? {
            return Ok(());
        }
        if i == j {
            let v = self.number();
            let slot = &mut self.buffers[i];
            let mut x = slot.take_on();
            each!(self.on, &mut x, |s, x| add(&s, x.len() as u32, v, x)?);
            slot.want.iter_mut().for_each(|x| *x = x.wrapping_add(v));
            slot.state = State::On(x);
            return Ok(());
        }
        if !self.on.offer(&mut self.buffers[i], t, how / 4)? {
            return Ok(());
        }
        let (from, to) = spans(self.buffers[i].len(), self.buffers[j].len(), how);
        let mut y = self.buffers[j].take_on();
        if let Some(x) = self.buffers[i].source(t) {
            both!(self.on, x, &mut y, |s, x, y| {
                let (x, y) = (x.slice(from.clone())?, y.slice_mut(to.clone())?);
                mix(&s, x.len() as u32, x, y)?;
            });
        }
        self.buffers[j].state = State::On(y);
        self.buffers[i].used(t, how);
        let x = self.buffers[i].want[from].to_vec();
        self.buffers[j].want[to].iter_mut().zip(x).for_each(|(y, x)| *y = y.wrapping_mul(3).wrapping_add(x));
        Ok(())
    }

    pub(crate) fn copy(&mut self, i: usize, j: usize, t: usize, how: u8) -> Outcome {
        note!(self, "copy device {i} to {j} on {t}: {how}");
        if i == j {
            return self.copy_within(i, t, how);
        }
        if !(self.on.bring(&mut self.buffers[j], t, how / 4)? && self.on.offer(&mut self.buffers[i], t, how / 4)?) {
            return Ok(());
        }
        let (from, to) = spans(self.buffers[i].len(), self.buffers[j].len(), how);
        let mut y = self.buffers[j].take_on();
        if let Some(x) = self.buffers[i].source(t) {
            both!(self.on, x, &mut y, |s, x, y| match how % 5 {
                0 => by_rows!(s, copy_region, copy, (x, from), (y, to)),
                _ => s.copy(x.slice(from.clone())?, y.slice_mut(to.clone())?)?,
            });
        }
        self.buffers[j].state = State::On(y);
        self.buffers[i].used(t, how);
        let data = self.buffers[i].want[from].to_vec();
        self.buffers[j].want[to].copy_from_slice(&data);
        Ok(())
    }

    /// Has the two other streams read a buffer that `t` shares, and then writes or drops it.
    pub(crate) fn fan_out(&mut self, i: usize, j: usize, t: usize, how: u8) -> Outcome {
        note!(self, "fan out device {i} of {t} to {j}: {how}");
        if matches!(self.buffers[i].state, State::Shared { .. }) {
            return Ok(());
        }
        self.on.share_one(&mut self.buffers[i], t)?;
        for u in 1..3 {
            let n = self.buffers.len();
            self.copy(i, (i + 1 + (j + u) % (n - 1)) % n, (t + u) % 3, how)?;
        }
        match how / 4 % 4 {
            0 => Ok(()),
            1 => self.on.discard(&mut self.buffers, i, j, false),
            _ => self.fill(i, t, how / 16),
        }
    }

    fn copy_within(&mut self, i: usize, t: usize, how: u8) -> Outcome {
        let slot = &mut self.buffers[i];
        if !self.on.bring(slot, t, how)? {
            return Ok(());
        }
        let half = slot.len() / 2;
        let mut x = slot.take_on();
        each!(self.on, &mut x, |s, x| {
            let (low, high) = x.split_at_mut(half)?;
            s.copy(low, high.slice_mut(..half)?)?;
        });
        slot.want.copy_within(..half, half);
        slot.state = State::On(x);
        Ok(())
    }

    pub(crate) fn upload(&mut self, i: usize, j: usize, t: usize, how: u8) -> Outcome {
        note!(self, "copy pinned {i} to device {j} on {t}: {how}");
        if !(self.on.bring(&mut self.buffers[j], t, how / 4)? && self.on.offer(&mut self.pinned[i], t, how / 4)?) {
            return Ok(());
        }
        let (from, to) = spans(self.pinned[i].len(), self.buffers[j].len(), how);
        let mut y = self.buffers[j].take_on();
        if let Some(x) = self.pinned[i].source(t) {
            both!(self.on, x, &mut y, |s, x, y| match how % 5 {
                0 => by_rows!(s, copy_region_to_device, copy_to_device, (x, from), (y, to)),
                _ => s.copy_to_device(x.slice(from.clone())?, y.slice_mut(to.clone())?)?,
            });
        }
        self.buffers[j].state = State::On(y);
        self.pinned[i].used(t, how);
        self.buffers[j].want[to].copy_from_slice(&self.pinned[i].want[from]);
        Ok(())
    }

    pub(crate) fn download(&mut self, i: usize, j: usize, t: usize, how: u8) -> Outcome {
        note!(self, "copy device {i} to pinned {j} on {t}: {how}");
        if !(self.on.bring(&mut self.pinned[j], t, how / 4)? && self.on.offer(&mut self.buffers[i], t, how / 4)?) {
            return Ok(());
        }
        let (from, to) = spans(self.buffers[i].len(), self.pinned[j].len(), how);
        let mut y = self.pinned[j].take_on();
        if let Some(x) = self.buffers[i].source(t) {
            both!(self.on, x, &mut y, |s, x, y| match how % 5 {
                0 => by_rows!(s, copy_region_to_host, copy_to_host, (x, from), (y, to)),
                _ => s.copy_to_host(x.slice(from.clone())?, y.slice_mut(to.clone())?)?,
            });
        }
        self.pinned[j].state = State::On(y);
        self.buffers[i].used(t, how);
        self.pinned[j].want[to].copy_from_slice(&self.buffers[i].want[from]);
        Ok(())
    }

    pub(crate) fn host_write(&mut self, i: usize, how: u8) -> Outcome {
        note!(self, "the host writes pinned {i}: {how}");
        let v = self.number();
        let slot = &mut self.pinned[i];
        if self.on.land(slot, how)? {
            let mut x = slot.take_idle();
            for (k, (x, want)) in x.iter_mut().zip(&mut slot.want).enumerate() {
                *want = v.wrapping_add(k as u32);
                *x = *want;
            }
            slot.state = State::Idle(x);
        }
        Ok(())
    }

    /// Has the host read a buffer that streams read too.
    pub(crate) fn host_view(&mut self, i: usize) -> Outcome {
        note!(self, "the host reads pinned {i}, shared or not");
        if let State::Shared { handles, .. } = &self.pinned[i].state
            && let Some(shared) = handles.first()
            && let Some(got) = shared.host()?
        {
            equal("a shared pinned buffer", got, &self.pinned[i].want)?;
        }
        Ok(())
    }

    pub(crate) fn read_blocking(&mut self, i: usize, t: usize, how: u8) -> Outcome {
        note!(self, "read device {i} on {t}: {how}");
        let slot = &mut self.buffers[i];
        if self.on.offer(slot, t, how)?
            && let Some(x) = slot.source(t)
        {
            equal("a device buffer", &each!(self.on, x, |s, x| s.read_blocking(x)?), &slot.want)?;
            slot.used(t, how);
        }
        Ok(())
    }

    pub(crate) fn write_blocking(&mut self, i: usize, t: usize, how: u8) -> Outcome {
        note!(self, "write device {i} on {t}: {how}");
        let v = self.number();
        let slot = &mut self.buffers[i];
        if self.on.bring(slot, t, how)? {
            let mut x = slot.take_on();
            slot.want.iter_mut().zip(v..).for_each(|(want, v)| *want = v);
            each!(self.on, &mut x, |s, x| s.write_blocking(&slot.want, x)?);
            slot.state = State::On(x);
        }
        Ok(())
    }

    /// Takes a pipeline step through the ring: the host or the device fills a slot, which is then
    /// copied to a buffer.
    pub(crate) fn frame(&mut self, i: usize, t: usize, how: u8) -> Outcome {
        note!(self, "a frame of the ring to device {i} on {t}: {how}");
        let event = self.ring.acquire()?;
        let (mut host_want, mut want) = self.frames.pop_front().unwrap_or_else(|| (vec![0; FRAME], vec![0; FRAME]));
        let v = self.number();
        let mut pair = if how.is_multiple_of(2) {
            let (mut host, device) = self.on.settle(event, how / 2)?;
            equal("a slot of the ring", &host, &host_want)?;
            host.fill(v);
            host_want.fill(v);
            self.on.bind(t, (host, device))?
        } else {
            self.on.wait(t, event)?
        };
        each!(self.on, &mut pair, |s, (host, device)| {
            if how.is_multiple_of(3) {
                s.fill(device, v ^ 1)?;
                s.copy_to_host(device, host)?;
                want.fill(v ^ 1);
                host_want.fill(v ^ 1);
            } else {
                s.copy_to_device(host, device)?;
                want.copy_from_slice(&host_want);
            }
        });
        if !self.buffers.is_empty() {
            let i = i % self.buffers.len();
            let slot = &mut self.buffers[i];
            if self.on.bring(slot, t, how)? {
                let n = FRAME.min(slot.len());
                let mut x = slot.take_on();
                both!(self.on, &pair, &mut x, |s, (_, device), x| s.copy(device.slice(..n)?, x.slice_mut(..n)?)?);
                slot.want[..n].copy_from_slice(&want[..n]);
                slot.state = State::On(x);
            }
        }
        match how / 2 % 8 {
            0 => drop(pair),
            1 => drop(self.on.record::<Pair>(pair)?),
            _ => {
                self.ring.recycle(self.on.record::<Pair>(pair)?);
                self.frames.push_back((host_want, want));
            }
        }
        Ok(())
    }

    /// Moves all device buffers of one stream to another with one event.
    pub(crate) fn hand_all(&mut self, from: usize, to: usize) -> Outcome {
        note!(self, "all of {from} to {to}");
        macro_rules! all {
            ($of:ident, $s:ident) => {{
                let (mut slots, mut all) = (Vec::new(), Vec::new());
                for slot in &mut self.buffers {
                    match slot.take() {
                        State::On(Of::$of(x)) => {
                            all.push(x);
                            slots.push(slot);
                        }
                        state => slot.state = state,
                    }
                }
                let event = self.on.$s.record(all)?;
                with!(self.on, to, |s, of| {
                    for (slot, x) in slots.into_iter().zip(s.wait(event)?) {
                        slot.state = State::On(of(x));
                    }
                });
            }};
        }
        match from {
            0 => all!(A, a),
            1 => all!(B, b),
            _ => all!(C, c),
        }
        Ok(())
    }

    /// Enqueues a host function, which may own a buffer.
    pub(crate) fn call(&mut self, i: usize, t: usize, how: u8) -> Outcome {
        note!(self, "a host function on {t}, pinned {i}: {how}");
        let last = match self.pinned.len() {
            0 => None,
            m => Some(i % m).filter(|&i| how.is_multiple_of(4) && matches!(self.pinned[i].state, State::Idle(_))),
        };
        let buffer = last.map(|i| self.pinned.remove(i).take_idle());
        let (calls, seen) = &mut self.calls[t];
        let (number, seen) = (*calls, seen.clone());
        *calls += 1;
        let call = move || {
            seen.lock().unwrap().push(number);
            drop(buffer);
        };
        on!(self.on, t, |s| s.launch_host(call)?);
        Ok(())
    }

    pub(crate) fn ask(&mut self, t: usize) -> Outcome {
        note!(self, "ask {t}");
        self.device.check()?;
        on!(self.on, t, |s| {
            let start = s.timestamp()?;
            s.is_complete()?;
            s.timestamp()?.elapsed(&start)?;
        });
        self.pool.trim();
        Ok(())
    }
}
