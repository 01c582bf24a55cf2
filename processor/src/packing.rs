//! Packing of images into bins with a budget.

use crate::{Error, Result};

/// Puts items into bins, by first fit in the order of descending costs, and returns the bin of
/// each. Of equal costs, the item with the smaller index is first. Bins are in the order of
/// opening.
///
/// ```
/// use thalweg_processor::pack;
///
/// assert_eq!(pack(&[30, 70, 60, 40], 100)?, [0, 0, 1, 1]);
/// # Ok::<(), thalweg_processor::Error>(())
/// ```
///
/// # Errors
/// An item costs more than the budget ([`Error::Budget`] with the first such item).
pub fn pack(costs: &[u32], budget: u32) -> Result<Vec<u32>> {
    if let Some((index, &cost)) = costs.iter().enumerate().find(|(_, cost)| **cost > budget) {
        return Err(Error::Budget { index, cost, budget });
    }
    let mut order: Vec<usize> = (0..costs.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(costs[i])); // it is stable
    let (mut room, mut bins) = (Vec::new(), vec![0; costs.len()]);
    for i in order {
        let bin = room.iter().position(|room| *room >= costs[i]).unwrap_or_else(|| {
            room.push(budget);
            room.len() - 1
        });
        room[bin] -= costs[i];
        bins[i] = bin as u32;
    }
    Ok(bins)
}
