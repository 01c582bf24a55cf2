"""Writes the wrappers of the products: python3 tiles.py > tiles.rs"""
def lst(n): return " ".join(str(i) for i in range(n))
def regs(n): return ", ".join("{%d}"%i for i in range(n))
for n in (128,192,256):
    c=n//2
    print(f'''
pub struct N{n};
impl Tile for N{n} {{
    const N: u32 = {n};
    type D = [f32; {c}];
    #[inline(always)] fn zero() -> [f32; {c}] {{ [0.0; {c}] }}
    #[inline(always)] fn get(d:&[f32;{c}],i:usize)->f32 {{ d[i] }}
    #[inline(always)] unsafe fn step<const TA: i32, const TB: i32>(d: &mut [f32; {c}], a: u64, b: u64, s: u32) {{
        step_body!("{n}", "{{{{{regs(c)}}}}}", [{lst(c)}], d, a, b, s);
    }}
    #[inline(always)] unsafe fn wait<const P: i32>(d: &mut [f32; {c}]) {{ wait_body!([{lst(c)}], d, P); }}
}}''')
