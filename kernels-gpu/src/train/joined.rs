//! Images and texts as the sequences of one decoder, and the rows whose next id is learned.
//!
//! ```text
//! rows of images   | image 0     | image 1 |
//! rows of texts    | question 0, answer 0 | question 1, answer 1 |
//! joined rows      | image 0     | question 0, answer 0 | image 1 | question 1, answer 1 |
//! rows of answers  | answer 0 | answer 1 |     the joined row before each id of an answer
//! ```
//!
//! Launch: a block for each row, or for each id. Memory: each row is read and written once. The
//! gradient of an id is the sum over the text rows that have it. [`id_chains`] links them, so that
//! a block reads no others, and the order of the sum is that of the rows.
//!
//! `image_ends` and `text_ends` may hold anything: what is outside the buffers is left out.

use thalweg_simt::kernel;

use super::sequences::sequence_of;

/// A joined row: a row of the images, or a row of the texts with its place in its own text.
#[derive(Clone, Copy)]
enum Joined {
    Image(u32),
    Text { row: u32, place: u32 },
}

/// Finds the sequence of a joined row, and what the row is. `image` and `text` give where a
/// sequence begins.
#[inline(always)]
fn joined(row: u32, sequences: u32, image: impl Fn(u32) -> u32, text: impl Fn(u32) -> u32) -> (u32, Joined) {
    let sequence = sequence_of(row, sequences, |s| image(s).wrapping_add(text(s)));
    let (of_image, first) = (row.wrapping_sub(text(sequence)), image(sequence + 1));
    if of_image < first {
        return (sequence, Joined::Image(of_image));
    }
    let row = row.wrapping_sub(first);
    (sequence, Joined::Text { row, place: row.wrapping_sub(text(sequence)) })
}

kernel! {
    /// Computes the ends of the joined sequences, the image rows of each, and the ends of the
    /// answers. `question` has the ids of each text that belong to its question.
    pub fn join_ends(
        t: impl Simt, sequences: u32, image_ends: In<i32>[ends = sequences + 1], text_ends: In<i32>[ends],
        question: In<i32>[sequences], joined_ends: Out<i32>[ends] by [x], images: Out<i32>[sequences] by [x],
        answer_ends: Out<i32>[ends] by [x],
    )
    grid(ends.div_ceil(64)) block(64)
    {
        if let Some(end) = joined_ends.cell(t) {
            end.set(image_ends.get(t, end.at()).wrapping_add(text_ends.get(t, end.at())));
        }
        if let Some(rows) = images.cell(t) {
            let [sequence] = rows.at();
            rows.set(image_ends.get(t, [sequence + 1]).wrapping_sub(image_ends.get(t, [sequence])));
        }
        if let Some(end) = answer_ends.cell(t) {
            let [sequence] = end.at();
            let (mut questions, mut before) = (0i32, 0);
            while before < sequence {
                questions = questions.wrapping_add(question.get(t, [before]));
                before += 1;
            }
            end.set(text_ends.get(t, [sequence]).wrapping_sub(questions));
        }
    }
}

kernel! {
    /// Joins the rows of images and texts. A text row is the row of its id and that of its place in
    /// the text. An id outside the table, or a place outside the positions, gives NaN.
    pub fn join_rows(
        t: impl Simt, images: u32, texts: u32, columns: u32, sequences: u32, ids: u32, places: u32,
        image_ends: In<i32>[ends = sequences + 1], text_ends: In<i32>[ends], image: In<f32>[images, columns],
        id: In<i32>[texts], table: In<f32>[ids, columns], position: In<f32>[places, columns],
        y: Out<f32>[rows = images + texts, columns] by [block, rank],
    )
    require { sequences >= 1 }
    grid(rows) block(128)
    {
        let begins = [&image_ends, &text_ends];
        let begin = |of: usize| move |s: u32| begins[of].get(t, [s]) as u32;
        let (_, row) = joined(t.block_idx().x, sequences, begin(0), begin(1));
        for y in y.mine(t) {
            let [_, c] = y.at();
            let v = match row {
                Joined::Image(row) => image.try_get(t, [row, c]),
                Joined::Text { row, place } => {
                    let id = id.try_get(t, [row]).unwrap_or(-1) as u32;
                    table.try_get(t, [id, c]).zip(position.try_get(t, [place, c])).map(|(a, b)| a + b)
                }
            };
            y.set(v.unwrap_or(f32::NAN));
        }
    }
}

kernel! {
    /// Takes the image rows out of joined rows.
    pub fn image_rows(
        t: impl Simt, images: u32, texts: u32, columns: u32, sequences: u32, image_ends: In<i32>[ends = sequences + 1],
        text_ends: In<i32>[ends], x: In<f32>[rows = images + texts, columns],
        y: Out<f32>[images, columns] by [block, rank],
    )
    require { sequences >= 1 }
    grid(images) block(128)
    {
        let row = t.block_idx().x;
        let sequence = sequence_of(row, sequences, |s| image_ends.get(t, [s]) as u32);
        let from = row.wrapping_add(text_ends.get(t, [sequence]) as u32);
        for y in y.mine(t) {
            let [_, c] = y.at();
            y.set(x.try_get(t, [from, c]).unwrap_or(0.0));
        }
    }
}

kernel! {
    /// Takes the row before each id of an answer out of joined rows, and the ids as labels, which
    /// are -1 where there is none.
    pub fn answer_rows(
        t: impl Simt, rows: u32, texts: u32, answers: u32, columns: u32, sequences: u32,
        image_ends: In<i32>[ends = sequences + 1], text_ends: In<i32>[ends], answer_ends: In<i32>[ends],
        question: In<i32>[sequences], id: In<i32>[texts], x: In<f32>[rows, columns], labels: Out<i32>[answers] by [block],
        y: Out<f32>[answers, columns] by [block, rank],
    )
    require { sequences >= 1 }
    grid(answers) block(128)
    {
        let answer = t.block_idx().x;
        let sequence = sequence_of(answer, sequences, |s| answer_ends.get(t, [s]) as u32);
        let before = question.get(t, [sequence]).wrapping_sub(answer_ends.get(t, [sequence]));
        let text = answer.wrapping_add(before.wrapping_add(text_ends.get(t, [sequence])) as u32);
        let from = text.wrapping_add(image_ends.get(t, [sequence + 1]) as u32).wrapping_sub(1);
        if let Some(label) = labels.cell(t) {
            label.set(id.try_get(t, [text]).unwrap_or(-1));
        }
        for y in y.mine(t) {
            let [_, c] = y.at();
            y.set(x.try_get(t, [from, c]).unwrap_or(f32::NAN));
        }
    }
}

kernel! {
    /// Computes the gradient of joined rows from that of [`answer_rows`]. Rows that no answer
    /// learns from get 0.
    pub fn answer_rows_backward(
        t: impl Simt, rows: u32, answers: u32, columns: u32, sequences: u32, image_ends: In<i32>[ends = sequences + 1],
        text_ends: In<i32>[ends], answer_ends: In<i32>[ends], question: In<i32>[sequences],
        dy: In<f32>[answers, columns], dx: Out<f32>[rows, columns] by [block, rank],
    )
    require { sequences >= 1 }
    grid(rows) block(128)
    {
        let begins = [&image_ends, &text_ends];
        let begin = |of: usize| move |s: u32| begins[of].get(t, [s]) as u32;
        let (sequence, row) = joined(t.block_idx().x, sequences, begin(0), begin(1));
        let asked = question.get(t, [sequence]) as u32;
        let answer = match row {
            Joined::Text { row, place } if place.wrapping_add(1) >= asked && row.wrapping_add(1) < begin(1)(sequence + 1) => {
                (answer_ends.get(t, [sequence]) as u32).wrapping_add(place.wrapping_add(1) - asked)
            }
            _ => u32::MAX,
        };
        for dx in dx.mine(t) {
            let [_, c] = dx.at();
            dx.set(dy.try_get(t, [answer, c]).unwrap_or(0.0));
        }
    }
}

kernel! {
    /// Computes the gradients of the places of a text from that of joined rows. With `add`, they
    /// are added to `dw`.
    pub fn place_gradients(
        t: impl Simt, rows: u32, columns: u32, places: u32, sequences: u32, add: bool,
        image_ends: In<i32>[ends = sequences + 1], text_ends: In<i32>[ends], dx: In<f32>[rows, columns],
        dw: InOut<f32>[places, columns] by [block, rank],
    )
    grid(places) block(128)
    {
        let place = t.block_idx().x;
        for dw in dw.mine(t) {
            let [_, c] = dw.at();
            let (mut sum, mut sequence) = (if add { dw.get() } else { 0.0 }, 0);
            while sequence < sequences {
                let row = (text_ends.get(t, [sequence]) as u32).wrapping_add(place);
                if row < text_ends.get(t, [sequence + 1]) as u32 {
                    let row = row.wrapping_add(image_ends.get(t, [sequence + 1]) as u32);
                    sum += dx.try_get(t, [row, c]).unwrap_or(0.0);
                }
                sequence += 1;
            }
            dw.set(sum);
        }
    }
}

kernel! {
    /// Links the text rows that have the same id: first the first row of each id, then, for each
    /// row, the next one. `texts` stands for none.
    pub fn id_chains(
        t: impl Simt, ids: u32, texts: u32, id: In<i32>[texts], next: Out<u32>[all = ids + texts] by [x],
    )
    grid(all.div_ceil(64)) block(64)
    {
        if let Some(next) = next.cell(t) {
            let [of] = next.at();
            let (mut row, wanted) = if of < ids { (0, of as i32) } else { (of - ids + 1, id.get(t, [of - ids])) };
            while row < texts && id.get(t, [row]) != wanted {
                row += 1;
            }
            next.set(row);
        }
    }
}

kernel! {
    /// Adds the gradients of the rows of ids to `dw`, from that of joined rows. `next` is what
    /// [`id_chains`] makes.
    pub fn id_gradients(
        t: impl Simt, images: u32, texts: u32, columns: u32, ids: u32, sequences: u32,
        image_ends: In<i32>[ends = sequences + 1], text_ends: In<i32>[ends], next: In<u32>[all = ids + texts],
        dx: In<f32>[rows = images + texts, columns], dw: InOut<f32>[ids, columns] by [block, rank],
    )
    require { sequences >= 1 }
    grid(ids) block(128)
    {
        let first = next.get(t, [t.block_idx().x]);
        if first >= texts {
            return;
        }
        for dw in dw.mine(t) {
            let [_, c] = dw.at();
            let (mut sum, mut row, mut more) = (dw.get(), first, true);
            while more {
                let sequence = sequence_of(row, sequences, |s| text_ends.get(t, [s]) as u32);
                let from = row.wrapping_add(image_ends.get(t, [sequence + 1]) as u32);
                sum += dx.try_get(t, [from, c]).unwrap_or(0.0);
                let after = next.get(t, [ids + row]);
                // A later row, whatever the chain holds: so it has an end.
                more = after > row && after < texts;
                row = after;
            }
            dw.set(sum);
        }
    }
}
