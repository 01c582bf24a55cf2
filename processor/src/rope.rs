//! The position ids of Qwen's language models: time, row and column of each token.

use crate::grids::PatchGrid;
use crate::{Error, Result, TransformersVersion};

/// The position ids of a batch of sequences, which Qwen calls M-RoPE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RopePositions {
    /// `position_ids` [3, sequences, length].
    pub position_ids: Vec<i64>,
    /// `rope_deltas` [sequences, 1].
    pub rope_deltas: Vec<i64>,
}

/// A batch of sequences of tokens, in which images are runs of one token.
#[derive(Clone, Copy, Debug)]
pub struct TokenSequences<'a> {
    /// The tokens [sequences, `length`].
    pub input_ids: &'a [i64],
    /// The tokens of a sequence, with padding.
    pub length: usize,
    /// Which tokens are none of padding, if some are.
    pub attention_mask: Option<&'a [bool]>,
    /// The token that stands for a merged cell of an image.
    pub image_token: i64,
}

impl RopePositions {
    /// Computes the ids of sequences, whose images have these grids in order.
    ///
    /// ```
    /// use thalweg_processor::grids::PatchGrid;
    /// use thalweg_processor::{RopePositions, TokenSequences, TransformersVersion};
    ///
    /// let grid = PatchGrid { frames: 1, rows: 2, columns: 4 }; // two tokens
    /// let tokens = TokenSequences { input_ids: &[5, 9, 9, 6], length: 4, attention_mask: None, image_token: 9 };
    /// let positions = RopePositions::new(tokens, &[grid], 2, TransformersVersion::V5)?;
    /// assert_eq!(positions.position_ids, [0, 1, 1, 3, 0, 1, 1, 3, 0, 1, 2, 3]);
    /// assert_eq!(positions.rope_deltas, [0]);
    /// # Ok::<(), thalweg_processor::Error>(())
    /// ```
    ///
    /// # Errors
    /// The tokens of an image are not as many as its grid says, or there are other images than
    /// grids ([`Error::Sequence`]).
    pub fn new(
        tokens: TokenSequences<'_>,
        grids: &[PatchGrid],
        merge: u32,
        version: TransformersVersion,
    ) -> Result<Self> {
        let TokenSequences { input_ids, length, attention_mask, .. } = tokens;
        let mask = attention_mask.unwrap_or(&[]);
        if length == 0 || input_ids.len() % length != 0 || !(mask.is_empty() || mask.len() == input_ids.len()) {
            let given = format!("{} tokens and {} masks", input_ids.len(), mask.len());
            return Err(Error::Sequence { given, expected: format!("a multiple of {length}, and as many") });
        }
        let masked = i64::from(version == TransformersVersion::V4);
        let mut all = Self { position_ids: vec![masked; 3 * input_ids.len()], rope_deltas: Vec::new() };
        let mut grids = grids.iter();
        for start in (0..input_ids.len()).step_by(length) {
            let live: Vec<usize> = (start..start + length).filter(|i| mask.is_empty() || mask[*i]).collect();
            let next = all.sequence(tokens, &live, &mut grids, merge)?;
            let counted = if version == TransformersVersion::V4 { length } else { live.len() };
            all.rope_deltas.push(next - counted as i64);
        }
        match grids.len() {
            0 => Ok(all),
            left => {
                Err(Error::Sequence { given: format!("{left} images fewer"), expected: "one for each grid".into() })
            }
        }
    }

    /// Writes the ids of the tokens `live`. Returns one more than the largest id.
    fn sequence(
        &mut self,
        tokens: TokenSequences<'_>,
        live: &[usize],
        grids: &mut std::slice::Iter<'_, PatchGrid>,
        merge: u32,
    ) -> Result<i64> {
        let (mut rest, mut next, mut end) = (live, 0, 0);
        while let Some(&first) = rest.first() {
            if tokens.input_ids[first] != tokens.image_token {
                self.set(first, [next; 3]);
                (rest, next) = (&rest[1..], next + 1);
                end = end.max(next);
                continue;
            }
            let places = image(grids.next(), merge)?;
            let run = rest.iter().take_while(|i| tokens.input_ids[**i] == tokens.image_token).count();
            if run < places.len() {
                let expected = format!("{}", places.len());
                return Err(Error::Sequence { given: format!("{run} tokens of an image"), expected });
            }
            let mut side = 0;
            for (&i, place) in rest.iter().zip(&places) {
                self.set(i, place.map(|v| v + next));
                side = place.iter().fold(side, |side, v| side.max(v + 1));
            }
            (rest, next) = (&rest[places.len()..], next + side);
            end = end.max(next);
        }
        Ok(end)
    }

    fn set(&mut self, token: usize, ids: [i64; 3]) {
        let tokens = self.position_ids.len() / 3;
        for (axis, id) in ids.into_iter().enumerate() {
            self.position_ids[axis * tokens + token] = id;
        }
    }
}

/// Returns frame, row and column of each merged cell of an image.
fn image(grid: Option<&PatchGrid>, merge: u32) -> Result<Vec<[i64; 3]>> {
    let none = || Error::Sequence { given: "an image without a grid".into(), expected: "a grid for each".into() };
    let PatchGrid { frames, rows, columns } = *grid.ok_or_else(none)?;
    let merge = merge.max(1);
    let cells =
        (0..frames).flat_map(|t| (0..rows / merge).flat_map(move |y| (0..columns / merge).map(move |x| [t, y, x])));
    Ok(cells.map(|cell| cell.map(i64::from)).collect())
}
