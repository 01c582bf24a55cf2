use vocabulary::integers::dots;

use crate::{noise, on_each_device};

#[test]
fn dot_products_of_bytes_wrap() {
    let mut noise = noise(1);
    let mut words = || -> Vec<u32> { (0..1000).map(|i| if i == 0 { u32::MAX } else { noise() }).collect() };
    let [a, b, c] = [words(), words(), words()];
    let expected: Vec<u32> = (0..a.len())
        .map(|i| {
            let products =
                a[i].to_le_bytes().into_iter().zip(b[i].to_le_bytes()).map(|(x, y)| u64::from(x) * u64::from(y));
            (u64::from(c[i]) + products.sum::<u64>()) as u32
        })
        .collect();
    on_each_device(|s| {
        let [x, y, z] = [&a, &b, &c].map(|v| s.upload_blocking(v).unwrap());
        let mut sums = s.alloc::<u32>(a.len()).unwrap();
        dots(s, a.len() as u32, &x, &y, &z, &mut sums).unwrap();
        assert_eq!(*s.read_blocking(&sums).unwrap(), *expected, "{}", s.device());
    });
}
