//! The error of a processor and of an image.

/// The error of a processor, or of one image.
///
/// An error of an image leaves the other images of its batch alone: see
/// [`InputLayout::errors`](crate::InputLayout::errors).
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device failed, or there is no memory.
    #[error(transparent)]
    Device(#[from] thalweg::Error),
    /// A parameter is out of its range.
    #[error("`{name}` is {given}, expected {expected}")]
    Parameter {
        /// The parameter.
        name: &'static str,
        /// The given value.
        given: String,
        /// A description of accepted values.
        expected: String,
    },
    /// A configuration has a field that is not known or a value that is not supported.
    #[error("the configuration's `{field}` is {given}: {problem}")]
    Config {
        /// The field.
        field: String,
        /// Its value.
        given: String,
        /// The reason why it is refused.
        problem: String,
    },
    /// An image has no pixels, or more than 16384 a side.
    #[error("an image of {height} x {width}, expected 1 to 16384 pixels a side")]
    ImageSize {
        /// The number of rows.
        height: u32,
        /// The number of columns.
        width: u32,
    },
    /// The bytes of an image are not as many as its size says.
    #[error("an image of {height} x {width} has {given} bytes, expected {}", 3 * u64::from(*height) * u64::from(*width))]
    ImageBytes {
        /// The number of rows.
        height: u32,
        /// The number of columns.
        width: u32,
        /// The number of bytes.
        given: usize,
    },
    /// The long side of an image is more than 200 times the short one.
    #[error("the long side of an image is {ratio} times the short one, expected at most 200")]
    Ratio {
        /// The ratio of the sides.
        ratio: f64,
    },
    /// An image would get no pixels or more than 65535 a side, or more than 2^31 - 1 rows.
    #[error("an image of {height} x {width} would become one of {} x {}, expected 1 to 65535 a side", resized[0], resized[1])]
    ResizedSize {
        /// The number of rows.
        height: u32,
        /// The number of columns.
        width: u32,
        /// The size after the resize: rows, columns.
        resized: [u64; 2],
    },
    /// The batch has more than its memory was made for.
    #[error("the batch has {given} {what}, but the memory has room for {room}")]
    Capacity {
        /// The things that are too many.
        what: &'static str,
        /// Their number.
        given: u64,
        /// The number that the memory has room for.
        room: u64,
    },
    /// A sequence of tokens does not have the images that are said to be in it.
    #[error("the sequence has {given}, expected {expected}")]
    Sequence {
        /// A description of what is there.
        given: String,
        /// A description of what should be there.
        expected: String,
    },
    /// An image costs more than the budget of a bin.
    #[error("image {index} costs {cost}, which is more than the budget of {budget}")]
    Budget {
        /// The image.
        index: usize,
        /// Its cost.
        cost: u32,
        /// The budget.
        budget: u32,
    },
}

/// The result of a call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

thalweg::__errors_of_device!(Error);

/// Makes the error of a parameter.
pub(crate) fn parameter(name: &'static str, given: impl ToString, expected: impl Into<String>) -> Error {
    Error::Parameter { name, given: given.to_string(), expected: expected.into() }
}
