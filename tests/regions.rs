//! Tests of copies of regions, of fills with elements of any size and of the occupancy query.
//! Each copy is compared with a plain loop over planes, rows and columns, on streams and in graphs.

use bytemuck::{Pod, Zeroable};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use testkit::devices::{everywhere, everywhere_and_seeded};
use thalweg::kernel;
use thalweg::{
    AnyStream, Brand, Device, DeviceBuffer, DeviceCopy, DeviceKind, Error, PinnedBuffer, Region, Resource, Stream,
};

/// A region as numbers: offset, extent, and what its pitches have more than its extent.
type Shape = (usize, [usize; 2]);

/// The region of an extent, and the number of elements that its buffer needs.
fn region([depth, height, width]: [usize; 3], (offset, [gap, rows]): Shape) -> (Region, usize) {
    let (pitch, plane) = (width + gap, height + rows);
    let region = Region::new(height, width).plane_pitch(plane).planes(depth).pitch(pitch).offset(offset);
    (region, offset + depth * plane * pitch)
}

/// What a copy makes of `to`.
fn copied(from: &[u16], source: Shape, to: &mut [u16], target: Shape, [depth, height, width]: [usize; 3]) {
    let at = |(offset, [gap, rows]): Shape, z: usize, y: usize, x: usize| {
        offset + (z * (height + rows) + y) * (width + gap) + x
    };
    for z in 0..depth {
        for y in 0..height {
            for x in 0..width {
                to[at(target, z, y, x)] = from[at(source, z, y, x)];
            }
        }
    }
}

/// The buffers of a case: page-locked source, two on the device, page-locked target.
#[derive(Resource)]
struct Buffers {
    from: PinnedBuffer<u16>,
    first: DeviceBuffer<u16>,
    second: DeviceBuffer<u16>,
    to: PinnedBuffer<u16>,
}

fn copies<S: Brand>(s: &Stream<S>, x: &mut BuffersOn<S>, regions: [Region; 4]) -> Result<(), Error> {
    let [a, b, c, d] = regions;
    s.copy_region_to_device(&x.from, a, &mut x.first, b)?;
    s.copy_region(&x.first, b, &mut x.second, c)?;
    s.copy_region_to_host(&x.second, c, &mut x.to, d)
}

#[test]
fn regions_are_copied_as_a_plain_loop_does() {
    let shape = || (0..5usize, [0..4usize, 0..3usize]);
    let case = ([0..4usize, 0..6usize, 0..40usize], [shape(), shape(), shape(), shape()], any::<bool>());
    everywhere_and_seeded(|device| {
        let mut config = testkit::cases(if device.kind() == DeviceKind::Cuda { 100 } else { 60 });
        config.max_shrink_iters = 200;
        let lane = AnyStream::new(device).unwrap();
        let result = TestRunner::new(config).run(&case, |(extent, shapes, capture)| {
            let regions = shapes.map(|shape| region(extent, shape));
            let content = |k: usize| (0..regions[k].1).map(|i| (1000 * k + i) as u16).collect::<Vec<_>>();
            let mut want = [content(0), content(1), content(2), content(3)];
            for k in 0..3 {
                let (before, after) = want.split_at_mut(k + 1);
                copied(&before[k], shapes[k], &mut after[0], shapes[k + 1], extent);
            }
            lane.enter(|s| {
                let buffers = Buffers {
                    from: device.pinned_from(&content(0)).unwrap(),
                    first: s.upload_blocking(&content(1)).unwrap().synchronize().unwrap(),
                    second: s.upload_blocking(&content(2)).unwrap().synchronize().unwrap(),
                    to: device.pinned_from(&content(3)).unwrap(),
                };
                let mut buffers = s.bind(buffers).unwrap();
                let regions = regions.map(|(region, _)| region);
                if capture {
                    let (mut graph, captured) = s.capture(buffers, |s, x| copies(s, x, regions)).unwrap();
                    let nodes = if regions[0].is_empty() { 0 } else { 3 };
                    prop_assert_eq!(graph.len(), nodes);
                    buffers = s.replay(&mut graph, captured).unwrap();
                } else {
                    copies(s, &mut buffers, regions).unwrap();
                }
                let first = s.read_blocking(&buffers.first).unwrap();
                let second = s.read_blocking(&buffers.second).unwrap();
                let idle = s.record(buffers).unwrap().synchronize().unwrap();
                prop_assert_eq!([&idle.from[..], &first, &second, &idle.to[..]], want.each_ref().map(|v| &v[..]));
                Ok(())
            })
        });
        result.unwrap_or_else(|error| panic!("{device}: {error}"));
    });
}

#[test]
fn parts_of_a_region_lie_where_they_should() {
    let all = Region::new(4, 6).planes(3).pitch(8).offset(5);
    let part = all.crop(1..3, 2..=4).unwrap().slab(1..).unwrap();
    assert_eq!((part.extent(), part.len()), ([2, 2, 3], 12));
    let expected = Region::new(2, 3).plane_pitch(4).planes(2).pitch(8).offset(5 + (4 + 1) * 8 + 2);
    assert_eq!(part, expected);
    assert!(all.crop(..5, ..).is_err() && all.crop(.., 3..7).is_err() && all.slab(..4).is_err());
    assert!(all.crop(2..2, ..).unwrap().is_empty() && !all.is_empty());
}

#[test]
fn regions_outside_their_buffers_are_refused() {
    everywhere(|device| {
        let lane = AnyStream::new(device).unwrap();
        lane.enter(|s| {
            let from = s.alloc_zeroed::<u8>(24).unwrap();
            let mut to = s.alloc_zeroed::<u8>(24).unwrap();
            let whole = Region::new(4, 6);
            let mut copy = |source, target| s.copy_region(&from, source, &mut to, target);
            copy(whole, whole).unwrap();
            // The last row may end before its pitch does.
            copy(Region::new(3, 4).pitch(10), Region::new(3, 4)).unwrap();
            let message = |result: Result<(), Error>| result.unwrap_err().to_string();
            assert_eq!(message(copy(whole.offset(1), whole)), "range 1..25 is not inside the 24 elements");
            assert_eq!(message(copy(whole, whole.pitch(7))), "range 0..27 is not inside the 24 elements");
            assert!(message(copy(whole, Region::new(6, 4))).contains("expected the [1, 4, 6] of the source"));
            assert!(message(copy(whole, whole.pitch(5))).contains("rows 5 apart"));
            let planes = Region::new(2, 2).planes(2);
            assert!(message(copy(planes, planes.plane_pitch(1))).contains("planes 1 rows apart"));
            let huge = Region::new(usize::MAX, 2);
            assert!(matches!(copy(huge, huge), Err(Error::Range(_))));
            // The pitch of a single row and of a single plane is not in the way of the end of the
            // buffer.
            for (source, target) in [
                (Region::new(1, 4).pitch(usize::MAX), Region::new(1, 4)),
                (Region::new(1, 4), Region::new(1, 4).pitch(usize::MAX)),
                (Region::new(1, 4).pitch(usize::MAX / 2 + 1), Region::new(1, 4)),
                (Region::new(2, 3).plane_pitch(usize::MAX), Region::new(2, 3)),
                (Region::new(2, 3), Region::new(2, 3).plane_pitch(usize::MAX / 3)),
                (Region::new(1, 4).pitch(1 << 40).plane_pitch(1 << 40), Region::new(1, 4)),
            ] {
                let refused = copy(source, target);
                assert!(matches!(refused, Err(Error::Parameter { name: "region", .. })), "{source:?}: {refused:?}");
            }
            for far in [whole.offset(usize::MAX), whole.planes(usize::MAX), whole.pitch(usize::MAX)] {
                assert!(matches!(copy(far, far), Err(Error::Range(_))), "{far:?}");
            }
            // Nothing is copied from or to an empty region, wherever it is.
            copy(Region::new(0, 6).offset(1000), Region::new(0, 6)).unwrap();
            // The bytes of a pitch are checked too: 2^61 elements of 8 bytes wrapped around to 0.
            let wide = s.alloc_zeroed::<u64>(4).unwrap();
            let mut to = s.alloc_zeroed::<u64>(4).unwrap();
            let single = Region::new(1, 4).pitch(1 << 61);
            let refused = s.copy_region(&wide, single, &mut to, Region::new(1, 4));
            assert!(matches!(refused, Err(Error::Parameter { name: "region", .. })), "{refused:?}");
            let mut host = s.bind(device.pinned::<u64>(4).unwrap()).unwrap();
            let refused = s.copy_region_to_host(&wide, Region::new(1, 4), &mut host, single);
            assert!(matches!(refused, Err(Error::Parameter { name: "region", .. })), "{refused:?}");
            let refused = s.copy_region_to_device(&host, single, &mut to, Region::new(1, 4));
            assert!(matches!(refused, Err(Error::Parameter { name: "region", .. })), "{refused:?}");
            s.synchronize().unwrap();
        });
    });
}

#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
struct Odd {
    a: u8,
    b: [u8; 2],
}

// SAFETY: A struct of bytes has no padding, and every bit pattern is a value.
unsafe impl Zeroable for Odd {}
// SAFETY: As above, and it is `Copy` and `'static`.
unsafe impl Pod for Odd {}

/// Fills a part of a buffer of this many elements.
fn filled<T: DeviceCopy + PartialEq + std::fmt::Debug>(value: T, len: usize) {
    everywhere_and_seeded(|device| {
        let lane = AnyStream::new(device).unwrap();
        lane.enter(|s| {
            let mut x = s.alloc_zeroed::<T>(len + 2).unwrap();
            s.fill(x.slice_mut(1..=len).unwrap(), value).unwrap();
            let (mut graph, y) = s
                .capture(s.alloc_zeroed(len + 2).unwrap(), |s, y: &mut thalweg::On<_, DeviceBuffer<T>>| {
                    s.fill(y.slice_mut(1..=len)?, value)
                })
                .unwrap();
            let y = s.replay(&mut graph, y).unwrap();
            let mut want = vec![T::zeroed(); len + 2];
            want[1..=len].fill(value);
            assert_eq!(s.read_blocking(&x).unwrap(), want, "{device}");
            assert_eq!(s.read_blocking(&y).unwrap(), want, "{device}, in a graph");
        });
    });
}

#[test]
fn elements_of_any_size_fill_a_buffer() {
    for len in [0, 1, 2, 31, 1000] {
        filled(0x12u8, len);
        filled(0x1234u16, len);
        filled(0x1234_5678u32, len);
        filled(0x1234_5678_9abc_def0u64, len);
        filled(-0.1f64, len);
        filled([1.5f32, 2.5, 3.5], len);
        filled([7u16; 5], len);
        filled([1u16, 2, 3], len);
        filled(Odd { a: 1, b: [2, 3] }, len);
        filled(u128::MAX / 3 + 1, len);
    }
}

kernel! {
    unsafe fn duplicate(cx: impl Simt, n: u32, x: In<u64>, y: Out<u64>)
    require { x.len() == n, y.len() == n }
    grid(n.div_ceil(64)) block(64)
    {
        let i = cx.global_x();
        if i < n {
            y.set(cx, i, x.get(cx, i));
        }
    }
}

/// A checked device knows which bytes a copy of a region and a fill with large elements have
/// written, and so which not.
#[test]
fn a_checked_device_knows_what_was_written() {
    let run = |filled: usize, columns: usize| -> Result<(), Error> {
        let device = Device::checked_cpu()?;
        AnyStream::new(device)?.enter(|s| {
            let mut x = s.alloc::<u64>(60)?;
            s.fill(x.slice_mut(..filled)?, 0x1234_5678_9abc_def0)?;
            let (mut y, mut z) = (s.alloc::<u64>(60)?, s.alloc::<u64>(60)?);
            let part = Region::new(6, columns).pitch(10);
            s.copy_region(&x, part, &mut y, part)?;
            duplicate(s, 60, &y, &mut z)?;
            s.synchronize()
        })
    };
    run(60, 10).unwrap();
    for (filled, columns) in [(59, 10), (60, 9)] {
        let found = run(filled, columns).unwrap_err().to_string();
        assert!(found.contains("written"), "{filled}, {columns}: {found}");
    }
}

/// A fill of large elements writes each word of them with a stride, and the last stride ends behind
/// the last element. What is there still counts as never written.
#[test]
fn a_fill_writes_nothing_behind_its_last_element() {
    let run = |n: usize| -> Result<(), Error> {
        let device = Device::checked_cpu()?;
        AnyStream::new(device)?.enter(|s| {
            let mut x = s.alloc::<[u32; 4]>(16)?;
            s.fill(x.slice_mut(..15)?, [1, 2, 3, 4])?;
            let idle = s.record(x)?.synchronize()?;
            let address = idle.device_ptr();
            std::mem::forget(idle);
            // SAFETY: `alloc` above made these 256 bytes on this device. Their only owner was idle
            // and is forgotten, so nothing else uses or frees them.
            let x = s.bind(unsafe { DeviceBuffer::<u64>::from_raw(device, address, 32) }?)?;
            let mut y = s.alloc::<u64>(n)?;
            duplicate(s, n as u32, x.slice(..n)?, &mut y)?;
            s.synchronize()
        })
    };
    run(30).unwrap();
    let found = run(31).unwrap_err().to_string();
    assert!(found.contains("written"), "{found}");
}

kernel! {
    unsafe fn touch(cx: impl Cooperative, n: u32, bytes: u32, x: Out<u32>)
    require { x.len() == n }
    grid(n.div_ceil(96)) block(96) shared(bytes)
    {
        cx.barrier();
        let i = cx.global_x();
        if i < n {
            x.set(cx, i, 1);
        }
    }
}

#[test]
fn occupancy_is_of_the_launch_that_would_be_made() {
    everywhere(|device| {
        let lane = AnyStream::new(device).unwrap();
        lane.enter(|s| {
            if device.kind() == DeviceKind::Cpu {
                let mut x = s.alloc_zeroed::<u32>(1000).unwrap();
                let found = s.occupancy(|query| touch(query, 1000, 640, &mut x)).unwrap();
                assert_eq!((found.blocks, found.threads, found.dynamic_shared_bytes), (1, 96, 640));
                assert_eq!(s.read_blocking(&x).unwrap(), [0; 1000], "nothing ran");
                // The launcher's own checks hold.
                let refused = s.occupancy(|query| touch(query, 999, 0, &mut x));
                assert!(matches!(refused, Err(Error::Launch(_))), "{refused:?}");
            } else {
                let (h, w) = (64, 64);
                let rgb = s.alloc_zeroed::<u8>(3 * h * w).unwrap();
                let mut planes = s.alloc_zeroed::<f32>(13 * h * w).unwrap();
                let launch = |q: &thalweg::OccupancyQuery<_>| {
                    thalweg_vision::kernels::textures(q, h as u32, w as u32, 0.5, 0.5, &rgb, &mut planes)
                };
                let found = s.occupancy(launch).unwrap();
                testkit::devices::report(&format!("{device}: textures has {found:?}"));
                // 2048 threads fit on the multiprocessors of the GPUs that this crate supports, or
                // 1024 on the smallest.
                assert!(found.threads == 256 && (1..=8).contains(&found.blocks), "{found:?}");
            }
            let nothing = s.occupancy(|_| Ok(())).unwrap_err();
            assert!(nothing.to_string().contains("a closure without a launch"), "{nothing}");
        });
    });
}
