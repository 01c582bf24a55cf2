#![no_std]
#![feature(abi_ptx, asm_experimental_arch, stdarch_nvptx)]
use core::arch::{asm, global_asm, nvptx::*};
#[panic_handler]
fn p(_: &core::panic::PanicInfo) -> ! { loop {} }
global_asm!(".extern .shared .align 1024 .b8 smem[];");

macro_rules! step_body { ($n:literal, $r:literal, [$($i:literal)*], $d:ident, $a:ident, $b:ident, $s:ident) => {
    asm!(concat!(
        "{{ .reg .pred p; .reg .b64 a1,a2,a3,b1,b2,b3; setp.ne.b32 p, {s}, 0;\n",
        "add.s64 a1, {a}, {sa}; add.s64 a2, a1, {sa}; add.s64 a3, a2, {sa};\n",
        "add.s64 b1, {b}, {sb}; add.s64 b2, b1, {sb}; add.s64 b3, b2, {sb};\n",
        "wgmma.fence.sync.aligned;\n",
        "wgmma.mma_async.sync.aligned.m64n", $n, "k16.f32.bf16.bf16 ", $r, ", {a}, {b}, p, 1, 1, {ta}, {tb};\n",
        "wgmma.mma_async.sync.aligned.m64n", $n, "k16.f32.bf16.bf16 ", $r, ", a1, b1, 1, 1, 1, {ta}, {tb};\n",
        "wgmma.mma_async.sync.aligned.m64n", $n, "k16.f32.bf16.bf16 ", $r, ", a2, b2, 1, 1, 1, {ta}, {tb};\n",
        "wgmma.mma_async.sync.aligned.m64n", $n, "k16.f32.bf16.bf16 ", $r, ", a3, b3, 1, 1, 1, {ta}, {tb};\n",
        "wgmma.commit_group.sync.aligned; }}"),
        $(inout(reg32) $d[$i],)*
        a = in(reg64) $a, b = in(reg64) $b, s = in(reg32) $s,
        ta = const TA, tb = const TB, sa = const if TA == 0 { 2 } else { 128 }, sb = const if TB == 0 { 2 } else { 128 },
        options(nostack))
}; }
macro_rules! wait_body { ([$($i:literal)*], $d:ident, $p:ident) => {
    asm!(concat!($("/*{", $i, "}*/", )* "wgmma.wait_group.sync.aligned {p};"), $(inout(reg32) $d[$i],)* p = const $p, options(nostack))
}; }
pub trait Tile {
    const N: u32;
    type D;
    fn zero() -> Self::D;
    fn get(d: &Self::D, i: usize) -> f32;
    unsafe fn step<const TA: i32, const TB: i32>(d: &mut Self::D, a: u64, b: u64, s: u32);
    unsafe fn wait<const P: i32>(d: &mut Self::D);
}
include!("tiles.rs");

#[repr(C, align(16))]
#[derive(Clone, Copy)]
pub struct TensorMap([u64; 16]);

#[inline(always)] unsafe fn smem() -> u32 { let a: u32; asm!("mov.u32 {0}, smem;", out(reg32) a, options(nomem, nostack, pure)); a }
#[inline(always)] unsafe fn bar_init(b: u32, n: u32) { asm!("mbarrier.init.shared::cta.b64 [{0}], {1};", in(reg32) b, in(reg32) n, options(nostack)); }
#[inline(always)] unsafe fn bar_expect(b: u32, n: u32) { asm!("mbarrier.arrive.expect_tx.shared::cta.b64 _, [{0}], {1};", in(reg32) b, in(reg32) n, options(nostack)); }
#[inline(always)] unsafe fn bar_wait(b: u32, parity: u32) {
    loop {
        let ok: u32;
        asm!("{{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [{1}], {2}; selp.u32 {0}, 1, 0, p; }}", out(reg32) ok, in(reg32) b, in(reg32) parity, options(nostack));
        if ok != 0 { break; }
    }
}
#[inline(always)] unsafe fn bar_arrive(b: u32) { asm!("mbarrier.arrive.shared::cta.b64 _, [{0}];", in(reg32) b, options(nostack)); }
#[inline(always)] unsafe fn bar_arrive_at(b: u32, cta: u32) {
    asm!("{{ .reg .b32 r; mapa.shared::cluster.u32 r, {0}, {1}; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [r]; }}", in(reg32) b, in(reg32) cta, options(nostack));
}
#[inline(always)] unsafe fn cluster_sync() { asm!("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;", options(nostack)); }
#[inline(always)] unsafe fn cluster_rank() -> u32 { let a: u32; asm!("mov.u32 {0}, %cluster_ctarank;", out(reg32) a, options(nomem, nostack, pure)); a }
#[inline(always)] unsafe fn tma(dst: u32, map: u64, x: u32, y: u32, bar: u32) {
    asm!("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [{0}], [{1}, {{{2}, {3}}}], [{4}];", in(reg32) dst, in(reg64) map, in(reg32) x, in(reg32) y, in(reg32) bar, options(nostack));
}
#[inline(always)] unsafe fn tma_multi(dst: u32, map: u64, x: u32, y: u32, bar: u32, mask: u16) {
    asm!("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [{0}], [{1}, {{{2}, {3}}}], [{4}], {5};", in(reg32) dst, in(reg64) map, in(reg32) x, in(reg32) y, in(reg32) bar, in(reg16) mask, options(nostack));
}
/// 128-byte swizzle; K-major (T = 0): 8 rows are 1024 bytes apart; MN-major: chunks of 64 are 8192 bytes apart, 8 of k 1024 bytes.
#[inline(always)] fn desc(addr: u32, t: i32) -> u64 {
    let lbo: u64 = if t == 0 { 1 } else { 512 };
    ((addr >> 4) & 0x3fff) as u64 | (lbo << 16) | (64 << 32) | (1 << 62)
}
#[inline(always)] unsafe fn pack(lo: f32, hi: f32) -> u32 { let r: u32; asm!("cvt.rn.bf16x2.f32 {0}, {1}, {2};", out(reg32) r, in(reg32) hi, in(reg32) lo, options(nomem, nostack, pure)); r }
#[inline(always)] unsafe fn stmatrix(addr: u32, r: [u32; 4]) { asm!("stmatrix.sync.aligned.m8n8.x4.shared.b16 [{0}], {{{1}, {2}, {3}, {4}}};", in(reg32) addr, in(reg32) r[0], in(reg32) r[1], in(reg32) r[2], in(reg32) r[3], options(nostack)); }
#[inline(always)] unsafe fn lds128(addr: u32) -> [u32; 4] { let (a, b, c, d): (u32, u32, u32, u32); asm!("ld.shared.v4.b32 {{{0},{1},{2},{3}}}, [{4}];", out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg32) addr, options(nostack)); [a, b, c, d] }
#[inline(always)] unsafe fn stg128(p: *mut u16, r: [u32; 4]) { asm!("st.global.v4.b32 [{0}], {{{1},{2},{3},{4}}};", in(reg64) p, in(reg32) r[0], in(reg32) r[1], in(reg32) r[2], in(reg32) r[3], options(nostack)); }
#[inline(always)] unsafe fn stg32(p: *mut u16, r: u32) { asm!("st.global.b32 [{0}], {1};", in(reg64) p, in(reg32) r, options(nostack)); }
#[inline(always)] unsafe fn syncwarp() { asm!("bar.warp.sync 0xffffffff;", options(nostack)); }

pub struct Args { pub c: *mut u16, pub m: u32, pub n: u32, pub k: u32, pub ldc: u32, pub gm: u32 }


/// Blocks of a cluster: CM along m (they share B), CN along n (they share A). EP: 0 direct, 1 through shared memory.
/// PP: each warpgroup has tiles of its own (128 x N, N <= 128). SR: setmaxnreg.
#[inline(always)]
unsafe fn body<T: Tile, const CM: u32, const CN: u32, const TA: i32, const TB: i32, const ST: u32, const EP: u32, const PP: bool, const SR: bool>(ma: u64, mb: u64, g: Args) {
    let cl = CM * CN;
    let stage_bytes: u32 = 16384 + T::N * 128;
    let s = smem();
    let full = s + ST * stage_bytes;
    let empty = full + ST * 8;
    let turn = empty + ST * 8;
    let out = full + 1024;
    let t = _thread_idx_x() as u32;
    let rank = if cl > 1 { cluster_rank() } else { 0 };
    if t == 0 {
        let mut i = 0;
        while i < ST { bar_init(full + i * 8, 1); bar_init(empty + i * 8, if PP { cl } else { 2 * cl }); i += 1; }
        if PP { bar_init(turn, 1); bar_init(turn + 8, 1); }
        asm!("fence.mbarrier_init.release.cluster;", options(nostack));
    }
    if cl > 1 { cluster_sync(); } else { _syncthreads(); }
    let tm = g.m.div_ceil(128 * CM);
    let tn = g.n.div_ceil(T::N * CN);
    let tiles = tm * tn;
    let workers = _grid_dim_x() as u32 / cl;
    let me = _block_idx_x() as u32 / cl;
    let kt = g.k.div_ceil(64);
    let place = |tile: u32| -> (u32, u32) {
        let per = g.gm * tn;
        let grp = tile / per;
        let rest = tile - grp * per;
        let rows = core::cmp::min(g.gm, tm - grp * g.gm);
        let col = rest / rows;
        let row = grp * g.gm + (rest - col * rows);
        let (rm, rn) = if CM > 1 { (rank, 0) } else { (0, rank) };
        ((row * CM + rm) * 128, (col * CN + rn) * T::N)
    };
    if t < 128 {
        if SR { asm!("setmaxnreg.dec.sync.aligned.u32 40;", options(nostack)); }
        if t == 0 {
            let mut st = 0; let mut ph = 1u32;
            let mut tile = me;
            while tile < tiles {
                let (m0, n0) = place(tile);
                let mut kk = 0;
                while kk < kt {
                    bar_wait(empty + st * 8, ph);
                    let f = full + st * 8;
                    bar_expect(f, stage_bytes);
                    let base = s + st * stage_bytes;
                    let kp = kk * 64;
                    let na = 2 / CN; let mut i = 0;
                    while i < na {
                        let j = if CN > 1 { i + rank * na } else { i };
                        let r = m0 + j * 64; let (x, y) = if TA == 0 { (kp, r) } else { (r, kp) };
                        if CN > 1 { tma_multi(base + j * 8192, ma, x, y, f, (1 << CN) - 1); } else { tma(base + j * 8192, ma, x, y, f); }
                        i += 1;
                    }
                    let nb = T::N / 64 / CM; let mut i = 0;
                    while i < nb {
                        let j = if CM > 1 { i + rank * nb } else { i };
                        let r = n0 + j * 64; let (x, y) = if TB == 0 { (kp, r) } else { (r, kp) };
                        if CM > 1 { tma_multi(base + 16384 + j * 8192, mb, x, y, f, (1 << CM) - 1); } else { tma(base + 16384 + j * 8192, mb, x, y, f); }
                        i += 1;
                    }
                    st += 1; if st == ST { st = 0; ph ^= 1; }
                    kk += 1;
                }
                tile += workers;
            }
        }
    } else {
        if SR { asm!("setmaxnreg.inc.sync.aligned.u32 232;", options(nostack)); }
        let w = t / 128 - 1;
        let lane = t % 32;
        let warp = (t / 32) % 4;
        let first = t % 128 == 0;
        let release = |st: u32| {
            if cl == 1 { if first { bar_arrive(empty + st * 8); } }
            else if t % 128 < cl { bar_arrive_at(empty + st * 8, t % 128); }
        };
        let store = |d: &T::D, r0: u32, n0: u32| {
            if EP == 0 {
                let r = r0 + lane / 4;
                let q = n0 + lane % 4 * 2;
                let p = g.c.add(r as usize * g.ldc as usize + q as usize);
                let p8 = p.add(8 * g.ldc as usize);
                let mut j = 0;
                while j < T::N / 8 {
                    let i = j as usize;
                    if q + j * 8 < g.n {
                        if r < g.m { stg32(p.add(i * 8), pack(T::get(d, i * 4), T::get(d, i * 4 + 1))); }
                        if r + 8 < g.m { stg32(p8.add(i * 8), pack(T::get(d, i * 4 + 2), T::get(d, i * 4 + 3))); }
                    }
                    j += 1;
                }
            } else {
                // a warp's own 16 x 64 piece: rows of 128 bytes, 16-byte pieces swizzled by row % 8
                let mine = out + (w * 4 + warp) * 2048;
                let mut c = 0;
                while c < T::N / 64 {
                    let mut h = 0;
                    while h < 4 {
                        let i = (c * 8 + h * 2) as usize;
                        let v = [pack(T::get(d, i * 4), T::get(d, i * 4 + 1)), pack(T::get(d, i * 4 + 2), T::get(d, i * 4 + 3)),
                            pack(T::get(d, i * 4 + 4), T::get(d, i * 4 + 5)), pack(T::get(d, i * 4 + 6), T::get(d, i * 4 + 7))];
                        let row = lane % 16; let col = h * 2 + lane / 16;
                        stmatrix(mine + row * 128 + ((col ^ (row % 8)) * 16), v);
                        h += 1;
                    }
                    syncwarp();
                    let mut h = 0;
                    while h < 4 {
                        let row = h * 4 + lane / 8; let col = lane % 8;
                        let v = lds128(mine + row * 128 + ((col ^ (row % 8)) * 16));
                        let r = r0 + row; let q = n0 + c * 64 + col * 8;
                        if r < g.m && q < g.n { stg128(g.c.add(r as usize * g.ldc as usize + q as usize), v); }
                        h += 1;
                    }
                    syncwarp();
                    c += 1;
                }
            }
        };
        if !PP {
            let mut st = 0; let mut ph = 0u32;
            let mut tile = me;
            while tile < tiles {
                let (m0, n0) = place(tile);
                let mut d = T::zero();
                let mut kk = 0; let mut prev = 0;
                while kk < kt {
                    bar_wait(full + st * 8, ph);
                    let base = s + st * stage_bytes;
                    T::step::<TA, TB>(&mut d, desc(base + w * 8192, TA), desc(base + 16384, TB), (kk > 0) as u32);
                    if kk > 0 { asm!("wgmma.wait_group.sync.aligned 1;", options(nostack)); release(prev); }
                    prev = st;
                    st += 1; if st == ST { st = 0; ph ^= 1; }
                    kk += 1;
                }
                T::wait::<0>(&mut d);
                release(prev);
                store(&d, m0 + w * 64 + warp * 16, n0);
                tile += workers;
            }
        } else {
            let mut it = w * kt; let mut mine = 1 - w;
            let mut tile = me + w * workers;
            while tile < tiles {
                let (m0, n0) = place(tile);
                bar_wait(turn + w * 8, mine); mine ^= 1;
                let mut d = T::zero(); let mut e = T::zero();
                let mut kk = 0; let mut prev = 0;
                while kk < kt {
                    let st = it % ST;
                    bar_wait(full + st * 8, (it / ST) & 1);
                    let base = s + st * stage_bytes;
                    let b = desc(base + 16384, TB);
                    T::step::<TA, TB>(&mut d, desc(base, TA), b, (kk > 0) as u32);
                    T::step::<TA, TB>(&mut e, desc(base + 8192, TA), b, (kk > 0) as u32);
                    if kk > 0 { asm!("wgmma.wait_group.sync.aligned 2;", options(nostack)); release(prev); }
                    prev = st;
                    it += 1;
                    kk += 1;
                }
                if first { bar_arrive(turn + (1 - w) * 8); }
                T::wait::<0>(&mut d);
                T::wait::<0>(&mut e);
                release(prev);
                store(&d, m0 + warp * 16, n0);
                store(&e, m0 + 64 + warp * 16, n0);
                it += kt;
                tile += 2 * workers;
            }
        }
    }
    if cl > 1 { cluster_sync(); }
}

macro_rules! entry { ($name:ident, $t:ty, $cm:literal, $cn:literal, $ta:literal, $tb:literal, $st:literal, $ep:literal, $pp:literal, $sr:literal) => {
    #[no_mangle] pub unsafe extern "ptx-kernel" fn $name(_a: TensorMap, _b: TensorMap, c: *mut u16, m: u32, n: u32, k: u32, ldc: u32, gm: u32) {
        let (ma, mb): (u64, u64);
        asm!("{{ .reg .b64 r; mov.b64 r, {f}_param_0; cvta.param.u64 {0}, r; mov.b64 r, {f}_param_1; cvta.param.u64 {1}, r; }}", out(reg64) ma, out(reg64) mb, f = sym $name, options(nomem, nostack, pure));
        body::<$t, $cm, $cn, $ta, $tb, $st, $ep, $pp, $sr>(ma, mb, Args { c, m, n, k, ldc, gm });
    }
}; }
entry!(g256_c1_nt_e1, N256, 1, 1, 0, 0, 4, 1, false, true);
entry!(g256_c1_nt_e1_nosr, N256, 1, 1, 0, 0, 4, 1, false, false);
entry!(g256_m2_nt_e1, N256, 2, 1, 0, 0, 4, 1, false, true);
entry!(g256_c1_nn_e1, N256, 1, 1, 0, 1, 4, 1, false, true);
entry!(g256_c1_tn_e1, N256, 1, 1, 1, 1, 4, 1, false, true);
entry!(g192_c1_nt_e1, N192, 1, 1, 0, 0, 5, 1, false, true);
entry!(g192_n2_nt_e1, N192, 1, 2, 0, 0, 5, 1, false, true);
entry!(g128_c1_nt_e1, N128, 1, 1, 0, 0, 6, 1, false, true);
entry!(g128_c1_nt_e1_pp, N128, 1, 1, 0, 0, 6, 1, true, true);
entry!(g128_m2_nt_e1_pp, N128, 2, 1, 0, 0, 6, 1, true, true);
entry!(g128_c1_nt_e1_nosr, N128, 1, 1, 0, 0, 6, 1, false, false);
entry!(g128_c1_nn_e1_nosr, N128, 1, 1, 0, 1, 6, 1, false, false);
entry!(g128_c1_tn_e1_nosr, N128, 1, 1, 1, 1, 6, 1, false, false);
entry!(g256_c1_nn_e1_nosr, N256, 1, 1, 0, 1, 4, 1, false, false);
entry!(g256_c1_tn_e1_nosr, N256, 1, 1, 1, 1, 4, 1, false, false);
