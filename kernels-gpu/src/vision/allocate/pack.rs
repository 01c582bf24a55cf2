//! Packing: moves the lists of the images of a batch together.

use thalweg_simt::{InOut, kernel};

#[cfg(not(target_arch = "nvptx64"))]
use crate::parts::block::WINDOW;
use crate::parts::block::scan;
use crate::vision::layout::Span;

/// The place of an image's list before it is packed.
pub(super) struct Room {
    pub(super) start: u32,
    pub(super) len: u32,
}

impl Room {
    /// The room for the patches `span`, of which at most `each` can be selected. The one of image b
    /// starts at min(its first patch, b `each`): from one image to the next both grow by at least
    /// the room that is needed, so no two rooms overlap.
    #[inline(always)]
    pub(super) fn new(span: Span, each: u32) -> Self {
        let start = u64::from(span.start).min(u64::from(span.image) * u64::from(each)) as u32;
        Self { start, len: span.len().min(each) }
    }
}

kernel! {
    /// Moves the lists that [`allocate_each`](super::allocate_each) left together, and adds up the
    /// totals of the images. `each` is the most that an image can select.
    ///
    /// One block moves the lists in place. Entries only move down: the block reads as many as it
    /// has threads, waits, and writes them.
    pub(in crate::vision) unsafe fn pack(
        cx: impl Cooperative, images: u32, patches: u32, each: u32,
        table: In<u32>, cu_seqlens: InOut<i32>, patch_id: InOut<i32>, counts: Out<u32>,
        image_cu_seqlens: InOut<i32>, image_cu_patches: InOut<i32>,
    )
    require {
        (1..=65535).contains(&images),
        (1..=268435456).contains(&patches),
        1 <= each,
        table.len() == 4 * (images + 1),
        cu_seqlens.len() > patches.min(images * each),
        patch_id.len() >= patches.min(images * each),
        counts.len() == 2,
        image_cu_seqlens.len() == images + 1,
        image_cu_patches.len() == images + 1,
    }
    grid(1) block(patches.min(images * each).div_ceil(32).min(32) * 32) shared(2 * WINDOW * 4)
    {
        let (rank, threads) = (cx.thread_idx().x, cx.block_dim().x);
        let windows = cx.shared::<u32>(0);
        let (mut tokens, mut selected) = (0u32, 0u32);
        let mut base = 0;
        while base < images {
            let image = base + rank;
            let own = |of: InOut<i32>| if image < images { of.get(cx, image as usize + 1) as u32 } else { 0 };
            let v = [own(image_cu_seqlens), own(image_cu_patches)];
            let ([t, k], [all_t, all_k]) = scan(cx, windows, v);
            if base + cx.thread_idx().x < images {
                let at = (base + cx.thread_idx().x) as usize + 1;
                image_cu_seqlens.set(cx, at, tokens.saturating_add(t).saturating_add(v[0]) as i32);
                image_cu_patches.set(cx, at, selected.saturating_add(k).saturating_add(v[1]) as i32);
            }
            (tokens, selected) = (tokens.saturating_add(all_t), selected.saturating_add(all_k));
            cx.barrier();
            base += threads;
        }
        if rank == 0 {
            image_cu_seqlens.set(cx, 0, 0);
            image_cu_patches.set(cx, 0, 0);
            counts.set(cx, 0, tokens);
            counts.set(cx, 1, selected);
        }
        cx.barrier();

        let room = u64::from(patches).min(u64::from(images) * u64::from(each)) as u32;
        let mut base = 0;
        while base <= room {
            let k = base + cx.thread_idx().x;
            let (mut offset, mut id) = (tokens as i32, -1);
            if k < selected.min(room) {
                // The entry belongs to the last image with no more than k selected patches before
                // it.
                let (mut image, mut next) = (0, images);
                while next - image > 1 {
                    let middle = image + (next - image) / 2;
                    if image_cu_patches.get(cx, middle as usize) as u32 <= k {
                        image = middle;
                    } else {
                        next = middle;
                    }
                }
                let list = Room::new(Span::of_image(cx, table, images, patches, image), each);
                let within = k.wrapping_sub(image_cu_patches.get(cx, image as usize) as u32);
                let from = list.start.wrapping_add(within).min(room - 1) as usize;
                offset = cu_seqlens.get(cx, from).wrapping_add(image_cu_seqlens.get(cx, image as usize));
                id = patch_id.get(cx, from);
            }
            // After this barrier all that is to be overwritten below has been read: later entries
            // come from further up.
            cx.barrier();
            let k = base + cx.thread_idx().x;
            if k <= room {
                cu_seqlens.set(cx, k as usize, offset);
            }
            if k < room {
                patch_id.set(cx, k as usize, id);
            }
            cx.barrier();
            base += threads;
        }
    }
}
