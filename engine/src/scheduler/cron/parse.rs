//! From text to sets.

use super::{Cron, Days};

/// Longest expression; with lists over all values a legitimate one has a few hundred bytes.
pub const EXPRESSION_BYTES_MAX: usize = 4_096;

/// Why an expression is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CronError {
    /// Neither five nor six fields.
    #[error("five or six fields are needed")]
    Fields,
    /// Above [`EXPRESSION_BYTES_MAX`].
    #[error("longer than {EXPRESSION_BYTES_MAX} bytes")]
    TooLong,
    /// A field that cannot be read, or a value out of range.
    #[error("field {0} (counted from 1) cannot be read or is out of range")]
    Field(usize),
    /// No such date exists, as 31 February.
    #[error("no such date exists")]
    Never,
}

/// What may stand in one field.
struct Form {
    min: u32,
    max: u32,
    /// Values in the set when it counts as `*`.
    all: u32,
    names: &'static [(&'static str, u32)],
}

const MONTHS: &[(&str, u32)] = &[
    ("jan", 1),
    ("feb", 2),
    ("mar", 3),
    ("apr", 4),
    ("may", 5),
    ("jun", 6),
    ("jul", 7),
    ("aug", 8),
    ("sep", 9),
    ("oct", 10),
    ("nov", 11),
    ("dec", 12),
];
const WEEKDAYS: &[(&str, u32)] = &[
    ("sun", 0),
    ("mon", 1),
    ("tue", 2),
    ("wed", 3),
    ("thu", 4),
    ("fri", 5),
    ("sat", 6),
];

const DAY: usize = 2;
const WEEKDAY: usize = 4;

const FORMS: [Form; 6] = [
    Form::new(0, 59, 60, &[]),
    Form::new(0, 23, 24, &[]),
    Form::new(1, 31, 31, &[]),
    Form::new(1, 12, 12, MONTHS),
    Form::new(0, 7, 7, WEEKDAYS),
    Form::new(0, 59, 60, &[]),
];

impl Form {
    const fn new(min: u32, max: u32, all: u32, names: &'static [(&'static str, u32)]) -> Form {
        Form {
            min,
            max,
            all,
            names,
        }
    }

    /// A number of ASCII digits or a name. Numbers too large for any field become `u32::MAX`.
    fn value(&self, text: &str) -> Option<u32> {
        let name = self.names.iter().find(|(name, _)| *name == text);
        name.map(|(_, value)| *value).or_else(|| digits(text))
    }

    /// What a value stands for: day and month 0 are 1, weekday 7 is Sunday.
    fn fold(&self, field: usize, value: u32) -> u32 {
        if field == WEEKDAY && value == 7 {
            0
        } else if self.min == 1 && value == 0 {
            1
        } else {
            value
        }
    }
}

/// One field as read.
#[derive(Default)]
struct Field {
    set: u64,
    star: bool,
    last: bool,
    nth: Option<[u8; 7]>,
}

pub(super) fn parse(expression: &str) -> Result<Cron, CronError> {
    if expression.len() > EXPRESSION_BYTES_MAX {
        return Err(CronError::TooLong);
    }
    let lower = expression.to_ascii_lowercase();
    let mut texts = [""; 6];
    let mut count = 0;
    for text in lower.split_ascii_whitespace() {
        *texts.get_mut(count).ok_or(CronError::Fields)? = text;
        count += 1;
    }
    if count < 5 {
        return Err(CronError::Fields);
    }
    if count == 5 {
        texts[5] = "0";
    }
    let mut fields: [Field; 6] = Default::default();
    for (n, text) in texts.iter().enumerate() {
        fields[n] = field(n, text).ok_or(CronError::Field(n + 1))?;
    }
    let [minutes, hours, day, month, weekday, seconds] = fields;
    Ok(Cron {
        minutes: minutes.set,
        hours: hours.set,
        seconds: seconds.set,
        months: month.set,
        days: Days {
            of_month: (!day.star).then_some(day.set),
            last: day.last && !day.star,
            of_week: (!weekday.star).then_some(weekday.set),
            nth: weekday.nth,
        },
    })
}

fn field(n: usize, text: &str) -> Option<Field> {
    let form = &FORMS[n];
    let mut field = Field::default();
    let mut stars = 0;
    let mut items = 0;
    for item in text.split(',') {
        items += 1;
        let (item, nth) = match item.rsplit_once('#') {
            Some((item, nth)) if n == WEEKDAY => (item, Some(nth_in_month(nth)?)),
            Some(_) => return None,
            None => (item, None),
        };
        if item == "*" {
            stars += 1;
            if let Some(nth) = nth {
                field.nth = Some([1 << nth; 7]);
            }
            continue;
        }
        if n == DAY && item == "l" {
            field.last = true;
            continue;
        }
        let (low, high, step) = range(n, form, item)?;
        let mut value = low;
        while value <= high {
            let folded = form.fold(n, value);
            field.set |= 1 << folded;
            if let Some(nth) = nth {
                field.nth.get_or_insert_default()[folded as usize] |= 1 << nth;
            }
            value = value.saturating_add(step);
        }
    }
    // A star beside anything else: croniter takes some of these and then fails or ignores the rest.
    if stars > 0 && items > 1 {
        return None;
    }
    let values = field.set.count_ones() + u32::from(field.last);
    field.star = stars > 0 || values == form.all;
    if field.star {
        let low = u64::from(form.min);
        field.set = (low..low + u64::from(form.all)).fold(0, |set, value| set | 1 << value);
    }
    Some(field)
}

/// `#1` to `#5`.
fn nth_in_month(text: &str) -> Option<u32> {
    match text.as_bytes() {
        [digit @ b'1'..=b'5'] => Some(u32::from(digit - b'0')),
        _ => None,
    }
}

/// `low`, `low-high`, either with `/step`, or `*/step`: first value, last value, step.
fn range(n: usize, form: &Form, item: &str) -> Option<(u32, u32, u32)> {
    let (base, step) = match item.split_once('/') {
        Some((base, step)) => (base, Some(digits(step).filter(|step| *step > 0)?)),
        None => (item, None),
    };
    let (low, high) = match base.split_once('-') {
        _ if base == "*" => (form.min, form.max),
        Some((low, "l")) if n == DAY => (form.value(low)?, form.max),
        Some((low_text, high_text)) => {
            let (low, high) = (form.value(low_text)?, form.value(high_text)?);
            // As the end of a range Sunday is 7; croniter knows it so only in these two spellings.
            if n == WEEKDAY && matches!(high_text, "0" | "sun") && low > 0 {
                (low, 7)
            } else {
                (low, high)
            }
        }
        None => {
            let low = form.value(base)?;
            let high = if step.is_some() { form.max } else { low };
            (low, high)
        }
    };
    (low <= high && high <= form.max).then_some((low, high, step.unwrap_or(1)))
}

fn digits(text: &str) -> Option<u32> {
    if text.is_empty() {
        return None;
    }
    text.bytes().try_fold(0_u32, |sum, byte| {
        byte.is_ascii_digit().then(|| {
            sum.saturating_mul(10)
                .saturating_add(u32::from(byte - b'0'))
        })
    })
}
