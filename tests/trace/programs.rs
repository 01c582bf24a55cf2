//! Programs with `unsafe` that each lack one wait, or make one call too early, unless they are
//! mended.
//!
//! `x` is a device buffer of stream `a`, and [`at`] gives the same memory to another stream, as
//! code with raw addresses does.

use std::mem::forget;

use thalweg::{
    Device, DeviceBuffer, DeviceSlice, HostSlice, On, PinnedBuffer, Region, Result, Stream, kernel, stream_tags, trace,
};

stream_tags!(pub(super) A, pub(super) B, pub(super) C);

/// A program.
pub(super) struct Program {
    pub(super) name: &'static str,
    /// The two calls that the report names.
    pub(super) names: [&'static str; 2],
    pub(super) run: fn(&Streams, bool) -> Result<()>,
}

/// The streams of a program, which belong to one device.
pub(super) struct Streams {
    device: Device,
    a: Stream<A>,
    b: Stream<B>,
    c: Stream<C>,
}

impl Streams {
    pub(super) fn new() -> Result<Self> {
        let device = Device::seeded_cpu(1)?;
        Ok(Self { device, a: device.stream()?, b: device.stream()?, c: device.stream()? })
    }

    /// Device memory on stream `a`, whose allocation the other streams have waited for.
    fn x(&self) -> Result<On<A, DeviceBuffer<u32>>> {
        let x = self.a.alloc(LEN)?;
        self.b.follow(&self.a)?;
        self.c.follow(&self.a)?;
        Ok(x)
    }

    /// Page-locked memory on stream `a`.
    fn p(&self) -> Result<On<A, PinnedBuffer<u32>>> {
        Ok(self.a.bind(self.device.pinned(LEN)?)?)
    }
}

const LEN: usize = 64;

kernel! {
    unsafe fn double(cx: impl Simt, x: In<u32>, y: Out<u32>)
    require { x.len() == y.len() }
    grid(1) block(1)
    {
        let _ = (cx, x, y);
    }
}

/// The first `len` elements at an address, as memory of any stream.
fn at<'m, S>(addr: u64, len: usize) -> &'m mut DeviceSlice<S, u32> {
    // SAFETY: This is the mistake of the programs: the memory is there, and belongs to another
    // stream. Each program runs on a seeded device, on one thread.
    unsafe { DeviceSlice::from_raw_mut(addr, len) }
}

/// The same for page-locked memory.
fn host_at<'m, S>(addr: u64, len: usize) -> &'m mut HostSlice<S, u32> {
    // SAFETY: As in `at`.
    unsafe { HostSlice::from_raw_mut(addr, len) }
}

const BYTES: usize = LEN * size_of::<u32>();

pub(super) const PROGRAMS: &[Program] = &[
    Program {
        name: "no wait",
        names: ["`fill` on stream", "`copy` on stream"],
        run: |on, mended| {
            let (mut x, mut y) = (on.x()?, on.b.alloc(LEN)?);
            on.a.fill(&mut x, 1)?;
            if mended {
                on.b.follow(&on.a)?;
            }
            on.b.copy(at(x.device_ptr(), LEN), &mut y)?;
            on.a.follow(&on.b)
        },
    },
    Program {
        name: "a record that nobody waits for",
        names: ["`fill`", "`fill`"],
        run: |on, mended| {
            let mut x = on.x()?;
            on.a.fill(&mut x, 1)?;
            let recorded = on.a.record(())?;
            if mended {
                on.b.wait(recorded)?;
            }
            on.b.fill(at(x.device_ptr(), LEN), 2)?;
            on.a.follow(&on.b)
        },
    },
    Program {
        name: "a record before the work",
        names: ["`fill`", "`fill`"],
        run: |on, mended| {
            let mut x = on.x()?;
            let early = on.a.record(())?;
            on.a.fill(&mut x, 1)?;
            on.b.wait(if mended { on.a.record(())? } else { early })?;
            on.b.fill(at(x.device_ptr(), LEN), 2)?;
            on.a.follow(&on.b)
        },
    },
    Program {
        name: "a wait for another stream",
        names: ["`fill`", "`fill`"],
        run: |on, mended| {
            let mut x = on.x()?;
            on.a.fill(&mut x, 1)?;
            if mended {
                on.b.follow(&on.a)?
            } else {
                on.b.follow(&on.c)?
            }
            on.b.fill(at(x.device_ptr(), LEN), 2)?;
            on.a.follow(&on.b)
        },
    },
    Program {
        name: "a wait of another stream",
        names: ["`fill`", "`fill`"],
        run: |on, mended| {
            let mut x = on.x()?;
            on.a.fill(&mut x, 1)?;
            if mended {
                on.b.follow(&on.a)?
            } else {
                on.c.follow(&on.a)?
            }
            on.b.fill(at(x.device_ptr(), LEN), 2)?;
            on.a.follow(&on.b)
        },
    },
    Program {
        name: "a wait in the wrong direction",
        names: ["`fill`", "`fill`"],
        run: |on, mended| {
            let mut x = on.x()?;
            on.a.fill(&mut x, 1)?;
            if mended {
                on.b.follow(&on.a)?
            } else {
                on.a.follow(&on.b)?
            }
            on.b.fill(at(x.device_ptr(), LEN), 2)?;
            on.a.follow(&on.b)
        },
    },
    Program {
        name: "a buffer that is handed off before the work on another one",
        names: ["`fill`", "`fill`"],
        run: |on, mended| {
            let (mut x, y) = (on.x()?, on.x()?);
            if mended {
                on.a.fill(&mut x, 1)?;
            }
            let _y = on.a.hand_off(y, &on.b)?;
            on.a.fill(&mut x, 1)?;
            if mended {
                on.b.follow(&on.a)?;
            }
            on.b.fill(at(x.device_ptr(), LEN), 2)?;
            on.a.follow(&on.b)
        },
    },
    Program {
        name: "a chain of waits with a missing part",
        names: ["`fill`", "`fill`"],
        run: |on, mended| {
            let mut x = on.x()?;
            on.a.fill(&mut x, 1)?;
            if mended {
                on.b.follow(&on.a)?;
            }
            on.c.follow(&on.b)?;
            on.c.fill(at(x.device_ptr(), LEN), 2)?;
            on.a.follow(&on.c)
        },
    },
    Program {
        name: "a chain of waits in the wrong order",
        names: ["`fill`", "`fill`"],
        run: |on, mended| {
            let mut x = on.x()?;
            on.a.fill(&mut x, 1)?;
            if mended {
                on.b.follow(&on.a)?;
            }
            on.c.follow(&on.b)?;
            on.b.follow(&on.a)?;
            on.c.fill(at(x.device_ptr(), LEN), 2)?;
            on.a.follow(&on.c)
        },
    },
    Program {
        name: "one element too many",
        names: ["`fill`", "`fill`"],
        run: |on, mended| {
            let mut x = on.x()?;
            on.b.follow(&on.a)?;
            on.a.fill(x.slice_mut(..32)?, 1)?;
            let first = if mended { 32 } else { 31 };
            on.b.fill(at(x.device_ptr() + 4 * first, LEN - first as usize), 2)?;
            on.a.follow(&on.b)
        },
    },
    Program {
        name: "a write beside a read",
        names: ["read  by `copy`", "write by `fill`"],
        run: |on, mended| {
            let (mut x, mut y) = (on.x()?, on.b.alloc(LEN)?);
            on.a.fill(&mut x, 1)?;
            on.b.follow(&on.a)?;
            on.b.copy(at(x.device_ptr(), LEN), &mut y)?;
            if mended {
                on.a.follow(&on.b)?;
            }
            on.a.fill(&mut x, 2)?;
            on.a.follow(&on.b)
        },
    },
    Program {
        name: "a reader that is not waited for",
        names: ["read  by `copy`", "write by `fill`"],
        run: |on, mended| {
            let (mut x, mut y, mut z) = (on.x()?, on.b.alloc(LEN)?, on.c.alloc(LEN)?);
            on.a.fill(&mut x, 1)?;
            on.b.follow(&on.a)?;
            on.c.follow(&on.a)?;
            on.b.copy(at(x.device_ptr(), LEN), &mut y)?;
            on.c.copy(at(x.device_ptr(), LEN), &mut z)?;
            on.a.follow(&on.c)?;
            if mended {
                on.a.follow(&on.b)?;
            }
            on.a.fill(&mut x, 2)?;
            on.a.follow(&on.b)
        },
    },
    Program {
        name: "zeros over what another stream reads",
        names: ["read  by `copy`", "write by `fill`"],
        run: |on, mended| {
            let (x, mut y) = (on.x()?, on.x()?);
            on.a.copy(&x, &mut y)?;
            if mended {
                on.b.follow(&on.a)?;
            }
            on.b.zero(at(x.device_ptr(), LEN))?;
            on.a.follow(&on.b)
        },
    },
    Program {
        name: "the host reads before the download is done",
        names: ["write by `copy_to_host`", "read  by `the sum`"],
        run: |on, mended| {
            let (mut x, mut p) = (on.x()?, on.p()?);
            on.a.fill(&mut x, 1)?;
            on.a.copy_to_host(&x, &mut p)?;
            if mended {
                on.a.synchronize()?;
            }
            trace::host_access("the sum", &[(p.host_ptr(), BYTES)], &[]);
            Ok(())
        },
    },
    Program {
        name: "the host writes before the upload is done",
        names: ["read  by `copy_to_device`", "write by `the next frame`"],
        run: |on, mended| {
            let (mut x, p) = (on.x()?, on.p()?);
            on.a.copy_to_device(&p, &mut x)?;
            if mended {
                on.a.record(())?.synchronize()?;
            }
            trace::host_access("the next frame", &[], &[(p.host_ptr(), BYTES)]);
            Ok(())
        },
    },
    Program {
        name: "the host waits for another stream",
        names: ["`copy_to_device`", "`the next frame`"],
        run: |on, mended| {
            let (mut x, p) = (on.x()?, on.p()?);
            on.a.copy_to_device(&p, &mut x)?;
            if mended {
                on.a.synchronize()?
            } else {
                on.b.synchronize()?
            }
            trace::host_access("the next frame", &[], &[(p.host_ptr(), BYTES)]);
            Ok(())
        },
    },
    Program {
        name: "the host waits before the work",
        names: ["`copy_to_device`", "`the next frame`"],
        run: |on, mended| {
            let (mut x, p) = (on.x()?, on.p()?);
            let early = on.a.record(())?;
            on.a.copy_to_device(&p, &mut x)?;
            if mended {
                on.a.record(())?.synchronize()?
            } else {
                early.synchronize()?
            }
            trace::host_access("the next frame", &[], &[(p.host_ptr(), BYTES)]);
            Ok(())
        },
    },
    Program {
        name: "memory is freed while another stream uses it",
        names: ["`fill`", "`free`"],
        run: |on, mended| {
            let x = on.x()?;
            on.b.follow(&on.a)?;
            on.b.fill(at(x.device_ptr(), LEN), 1)?;
            if mended {
                on.a.follow(&on.b)?;
            }
            drop(x);
            on.a.follow(&on.b)
        },
    },
    Program {
        name: "memory is used after it was freed",
        names: ["freed  by `free`", "used   by `fill`"],
        run: |on, mended| {
            let x = on.x()?;
            let addr = x.device_ptr();
            if mended {
                on.a.fill(at(addr, LEN), 1)?;
                drop(x);
            } else {
                drop(x);
                on.a.fill(at(addr, LEN), 1)?;
            }
            Ok(())
        },
    },
    Program {
        name: "memory is freed twice",
        names: ["freed  by `free`", "used   by `free`"],
        run: |on, mended| {
            let x = on.x()?.synchronize()?;
            // SAFETY: Nothing uses the memory. But both buffers own it.
            let y = unsafe { DeviceBuffer::<u32>::from_raw(on.device, x.device_ptr(), LEN) }?;
            drop(on.a.bind(y)?);
            if mended {
                forget(x)
            } else {
                drop(on.a.bind(x)?)
            }
            let _here = on.a.alloc::<u32>(1)?;
            Ok(())
        },
    },
    Program {
        name: "memory is adopted while work on it is pending",
        names: ["`fill`", "`from_raw` on the host"],
        run: |on, mended| {
            let mut x = on.x()?;
            on.a.fill(&mut x, 1)?;
            let addr = x.device_ptr();
            forget(x);
            if mended {
                on.a.synchronize()?;
            }
            // SAFETY: The stream of the memory may still write it, which the contract forbids.
            let y = unsafe { DeviceBuffer::<u32>::from_raw(on.device, addr, LEN) }?;
            drop(on.b.bind(y)?);
            Ok(())
        },
    },
    Program {
        name: "page-locked memory is reused while another stream reads it",
        names: ["read  by `copy_to_device`", "write by `page-locked allocation`"],
        run: |on, mended| {
            let (p, mut y) = (on.p()?, on.b.alloc(LEN)?);
            on.b.copy_to_device(host_at(p.host_ptr(), LEN), &mut y)?;
            if mended {
                on.b.synchronize()?;
            }
            drop(p);
            on.a.synchronize()?;
            on.p().map(drop)
        },
    },
    Program {
        name: "a replay beside the work after it",
        names: ["`replay` on stream", "`fill` on stream"],
        run: |on, mended| {
            let (mut graph, x) = on.a.capture(on.x()?, |s, x| s.fill(x, 1))?;
            let x = on.a.replay(&mut graph, x)?;
            if mended {
                on.b.follow(&on.a)?;
            }
            on.b.fill(at(x.device_ptr(), LEN), 2)?;
            on.a.follow(&on.b)
        },
    },
    Program {
        name: "a replay that uses what is not in its bundle",
        names: ["`fill` on stream", "which runs `copy`"],
        run: |on, mended| {
            let mut x = on.x()?;
            let addr = x.device_ptr();
            let (mut graph, y) = on.b.capture(on.b.alloc(LEN)?, |s, y| s.copy(at(addr, LEN), y))?;
            on.a.fill(&mut x, 1)?;
            if mended {
                on.b.follow(&on.a)?;
            }
            let _y = on.b.replay(&mut graph, y)?;
            on.a.follow(&on.b)
        },
    },
    Program {
        name: "a replay of memory that was freed",
        names: ["freed  by `free`", "which runs `copy`"],
        run: |on, mended| {
            let x = on.x()?;
            let addr = x.device_ptr();
            let (mut graph, y) = on.a.capture(on.x()?, |s, y| s.copy(at(addr, LEN), y))?;
            if mended {
                let _y = on.a.replay(&mut graph, y)?;
                drop(x);
            } else {
                drop(x);
                let _y = on.a.replay(&mut graph, y)?;
            }
            Ok(())
        },
    },
    Program {
        name: "two branches of a graph write the same bytes",
        names: ["`fill`", "`fill`"],
        run: |on, mended| {
            let (_graph, _x) = on.a.capture(on.x()?, |s, x| {
                let (addr, second) = (x.device_ptr(), if mended { 32 } else { 31 });
                s.fork((), (), |s, ()| s.fill(at(addr, 32), 1), |s, ()| s.fill(at(addr + 4 * second, 32), 2))
            })?;
            Ok(())
        },
    },
    Program {
        name: "work of a graph that does not come after its branches",
        names: ["write by `fill`", "read  by `copy`"],
        run: |on, mended| {
            let (_graph, _x) = on.a.capture((on.x()?, on.x()?), |s, (x, y)| {
                let addr = x.device_ptr();
                s.fork(
                    &mut *x,
                    &mut *y,
                    |s, x| s.fill(x, 1),
                    |s, y| if mended { Ok(()) } else { s.copy(at(addr, LEN), y) },
                )?;
                s.copy(at(addr, LEN), y)
            })?;
            Ok(())
        },
    },
    Program {
        name: "a kernel reads what another stream writes",
        names: ["write by `fill`", "read  by `double`"],
        run: |on, mended| {
            let (mut x, mut y) = (on.x()?, on.b.alloc(LEN)?);
            on.a.fill(&mut x, 1)?;
            if mended {
                on.b.follow(&on.a)?;
            }
            double(&on.b, at(x.device_ptr(), LEN), &mut y)?;
            on.a.follow(&on.b)
        },
    },
    Program {
        name: "a kernel writes what another stream reads",
        names: ["read  by `copy`", "write by `double`"],
        run: |on, mended| {
            let (x, mut y, z) = (on.x()?, on.x()?, on.b.alloc(LEN)?);
            on.a.copy(&x, &mut y)?;
            if mended {
                on.b.follow(&on.a)?;
            }
            double(&on.b, &z, at(x.device_ptr(), LEN))?;
            on.a.follow(&on.b)
        },
    },
    Program {
        name: "a host function beside a copy",
        names: ["write by `host function`", "read  by `copy_to_device`"],
        run: |on, mended| {
            let (mut p, mut y) = (on.p()?, on.b.alloc(LEN)?);
            on.a.launch_host_on(&mut p, |p| p.fill(1))?;
            if mended {
                on.b.follow(&on.a)?;
            }
            on.b.copy_to_device(host_at(p.host_ptr(), LEN), &mut y)?;
            on.a.follow(&on.b)
        },
    },
    Program {
        name: "the host reads what a kernel writes in place",
        names: ["write by `double`", "read  by `the sum`"],
        run: |on, mended| {
            let (x, mut p) = (on.x()?, on.p()?);
            double(&on.a, &x, p.mapped_mut()?)?;
            if mended {
                on.a.synchronize()?;
            }
            trace::host_access("the sum", &[(p.host_ptr(), BYTES)], &[]);
            Ok(())
        },
    },
    Program {
        name: "columns of an image that overlap",
        names: ["`copy_rows`", "`copy_rows`"],
        run: |on, mended| {
            let (source, mut x, other) = (on.x()?, on.x()?, on.b.alloc(LEN)?);
            let columns = |n: usize| Region::new(8, 8).crop(.., n..n + 4);
            on.b.follow(&on.a)?;
            on.a.copy_region(&source, columns(0)?, &mut x, columns(0)?)?;
            let second = if mended { 4 } else { 3 };
            on.b.copy_region(&other, columns(0)?, at(x.device_ptr(), LEN), columns(second)?)?;
            on.a.follow(&on.b)
        },
    },
    Program {
        name: "a library works beside the stream of its input",
        names: ["write by `fill`", "read  by `library_product`"],
        run: |on, mended| {
            let (mut x, y) = (on.x()?, on.b.alloc::<u32>(LEN)?);
            on.a.fill(&mut x, 1)?;
            if mended {
                on.b.follow(&on.a)?;
            }
            on.b.trace_work("library_product", &[(x.device_ptr(), BYTES)], &[(y.device_ptr(), BYTES)]);
            on.a.follow(&on.b)
        },
    },
    Program {
        name: "the output of a library is read too early",
        names: ["write by `library_product`", "read  by `copy`"],
        run: |on, mended| {
            let (x, mut y) = (on.x()?, on.b.alloc::<u32>(LEN)?);
            on.a.trace_work("library_product", &[], &[(x.device_ptr(), BYTES)]);
            if mended {
                on.b.follow(&on.a)?;
            }
            on.b.copy(at(x.device_ptr(), LEN), &mut y)?;
            on.a.follow(&on.b)
        },
    },
    Program {
        name: "a piece is freed while another stream uses it",
        names: ["`fill`", "`free`"],
        run: |on, mended| {
            let pieces = on.x()?.split_even(2)?;
            on.b.follow(&on.a)?;
            on.b.fill(at(pieces[1].device_ptr(), 32), 1)?;
            if mended {
                on.a.follow(&on.b)?;
            }
            drop(pieces);
            let _here = on.a.alloc::<u32>(1)?;
            on.a.follow(&on.b)
        },
    },
    Program {
        name: "a shared buffer is read after the end of the reading",
        names: ["read  by `copy`", "write by `fill`"],
        run: |on, mended| {
            let mut y = on.b.alloc(LEN)?;
            let shared = on.a.share(on.x()?)?;
            let reading = on.b.reading(&shared)?;
            let addr = reading.device_ptr();
            if mended {
                on.b.copy(at(addr, LEN), &mut y)?;
                drop(reading);
            } else {
                drop(reading);
                on.b.copy(at(addr, LEN), &mut y)?;
            }
            let mut x = on.a.unshare(shared)?;
            on.a.fill(&mut x, 1)?;
            on.a.follow(&on.b)
        },
    },
    Program {
        name: "a blocking read does not wait for another stream",
        names: ["write by `fill`", "read  by `copy_to_host`"],
        run: |on, mended| {
            let mut x = on.x()?;
            on.a.fill(&mut x, 1)?;
            if mended {
                on.b.follow(&on.a)?;
            }
            on.b.read_blocking(at(x.device_ptr(), LEN)).map(drop)
        },
    },
    Program {
        name: "a blocking write does not wait for another stream",
        names: ["read  by `copy`", "write by `copy_to_device`"],
        run: |on, mended| {
            let (x, mut y) = (on.x()?, on.x()?);
            on.a.copy(&x, &mut y)?;
            if mended {
                on.b.follow(&on.a)?;
            }
            on.b.write_blocking(&[1; LEN], at(x.device_ptr(), LEN))
        },
    },
    Program {
        name: "page-locked memory between two devices",
        names: ["write by `copy_to_host`", "read  by `copy_to_device`"],
        run: |on, mended| {
            stream_tags!(There);
            let (mut x, mut p) = (on.x()?, on.p()?);
            let there = Device::seeded_cpu(2)?.stream::<There>()?;
            let mut y = there.alloc(LEN)?;
            on.a.fill(&mut x, 1)?;
            on.a.copy_to_host(&x, &mut p)?;
            if mended {
                on.a.synchronize()?;
            }
            there.copy_to_device(host_at(p.host_ptr(), LEN), &mut y)?;
            there.synchronize()
        },
    },
];
