//! Cron expressions with the meaning of croniter 1.0.5, which EventMQ 0.3.13 evaluates them with.
//!
//! Five fields (minute, hour, day of month, month, day of week), or six with the second as the
//! **last** one. Lists, ranges, steps, English names of three letters, `l` for the last day of the
//! month, `5#2` for the second Friday. If both day fields are restricted a date fires that matches
//! either. Pure arithmetic on civil dates: no clock, no allocation after parsing.
//!
//! Differences from croniter, on purpose:
//! - what croniter takes and cannot evaluate (a date that never comes, `*,5`, `*#2,1`) is refused
//!   at once;
//! - `l` beside days 29 to 31 (`30,l`) is the last day of every month; croniter forgets it in
//!   months that lack one of the days;
//! - only ASCII digits, at most [`EXPRESSION_BYTES_MAX`] bytes.

mod parse;

pub use parse::{CronError, EXPRESSION_BYTES_MAX};

use jiff::ToSpan;
use jiff::civil::{Date, DateTime, Time};

/// Years searched for the next date. The longest gap of any date that comes at all is 40 years
/// (29 February on a given weekday, around a century year without a leap day).
const SEARCH_YEARS_MAX: i16 = 60;

/// A parsed expression that comes true on some date.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cron {
    minutes: u64,
    hours: u64,
    seconds: u64,
    months: u64,
    days: Days,
}

/// The three ways to say a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Days {
    /// Bits 1 to 31; `None` = `*`.
    of_month: Option<u64>,
    /// The last day of the month counts, too.
    last: bool,
    /// Bits 0 (Sunday) to 6; `None` = `*`.
    of_week: Option<u64>,
    /// For each weekday the bits 1 to 5: its first to fifth in the month. If any `#` was given only
    /// these fire.
    nth: Option<[u8; 7]>,
}

impl Cron {
    /// Reads an expression.
    ///
    /// # Errors
    /// [`CronError`]: the form, a value out of range, or a date that never comes.
    pub fn parse(expression: &str) -> Result<Cron, CronError> {
        let cron = parse::parse(expression)?;
        if cron.comes_true() {
            Ok(cron)
        } else {
            Err(CronError::Never)
        }
    }

    /// The first moment strictly after `after` that matches; its fraction of a second is zero.
    /// `None` beyond year 9999 or after a bounded search.
    pub fn next_after(&self, after: DateTime) -> Option<DateTime> {
        let from = after
            .with()
            .subsec_nanosecond(0)
            .build()
            .ok()?
            .checked_add(1.second())
            .ok()?;
        let mut date = from.date();
        if self.is_day(date)
            && let Some(time) = self.time_from(from.time())
        {
            return Some(DateTime::from_parts(date, time));
        }
        let last_year = date.year().saturating_add(SEARCH_YEARS_MAX);
        loop {
            date = date.tomorrow().ok()?;
            // Months that do not matter are passed over at once.
            while self.months >> date.month() & 1 == 0 {
                date = date.first_of_month().checked_add(1.month()).ok()?;
            }
            if date.year() > last_year {
                return None;
            }
            if self.is_day(date) {
                let time = self.time_from(Time::midnight())?;
                return Some(DateTime::from_parts(date, time));
            }
        }
    }

    fn is_day(&self, date: Date) -> bool {
        self.months >> date.month() & 1 == 1 && self.days.contain(date)
    }

    /// The first time of day from `from` on.
    fn time_from(&self, from: Time) -> Option<Time> {
        let (hour, minute, second) = (
            from.hour() as u32,
            from.minute() as u32,
            from.second() as u32,
        );
        if self.hours >> hour & 1 == 1 {
            if self.minutes >> minute & 1 == 1
                && let Some(second) = first_from(self.seconds, second)
            {
                return Time::new(hour as i8, minute as i8, second, 0).ok();
            }
            if let Some(minute) = first_from(self.minutes, minute + 1) {
                let second = first_from(self.seconds, 0)?;
                return Time::new(hour as i8, minute, second, 0).ok();
            }
        }
        let hour = first_from(self.hours, hour + 1)?;
        let (minute, second) = (first_from(self.minutes, 0)?, first_from(self.seconds, 0)?);
        Time::new(hour, minute, second, 0).ok()
    }

    /// Whether every way to say a day that croniter follows by itself finds a date. croniter gives
    /// up on `31 jun sun` although there are Sundays in June, and so does this.
    fn comes_true(&self) -> bool {
        let days = self.days;
        let parts = match (days.of_month, days.of_week) {
            (Some(_), Some(_)) => [
                Days {
                    of_week: None,
                    ..days
                },
                Days {
                    of_month: None,
                    last: false,
                    ..days
                },
            ],
            _ => [days, days],
        };
        parts.iter().all(|part| self.finds_a_date(part))
    }

    fn finds_a_date(&self, days: &Days) -> bool {
        // Every combination of length of month and weekday comes within these 28 years.
        let first = Date::constant(2000, 1, 1);
        first
            .series(1.month())
            .take(28 * 12)
            .filter(|month| self.months >> month.month() & 1 == 1)
            .any(|month| {
                month
                    .series(1.day())
                    .take(month.days_in_month() as usize)
                    .any(|date| days.contain_strictly(date))
            })
    }
}

impl Days {
    /// With the rule for two restricted fields: either.
    fn contain(&self, date: Date) -> bool {
        let (month_day, weekday) = (self.has_month_day(date), self.has_weekday(date));
        match (self.of_month, self.of_week) {
            // With `#` croniter asks for the weekday whichever field matches.
            (Some(_), Some(_)) if self.nth.is_some() => weekday,
            (Some(_), Some(_)) => month_day || weekday,
            _ => month_day && weekday,
        }
    }

    fn contain_strictly(&self, date: Date) -> bool {
        self.has_month_day(date) && self.has_weekday(date)
    }

    fn has_month_day(&self, date: Date) -> bool {
        match self.of_month {
            None => true,
            Some(days) => {
                days >> date.day() & 1 == 1 || (self.last && date.day() == date.days_in_month())
            }
        }
    }

    fn has_weekday(&self, date: Date) -> bool {
        let weekday = date.weekday().to_sunday_zero_offset() as usize;
        match (self.nth, self.of_week) {
            (Some(nth), _) => nth[weekday] >> ((date.day() + 6) / 7) & 1 == 1,
            (None, Some(days)) => days >> weekday & 1 == 1,
            (None, None) => true,
        }
    }
}

/// The lowest bit of `set` that is at least `from`.
fn first_from(set: u64, from: u32) -> Option<i8> {
    let left = set.checked_shr(from)?;
    (left != 0).then(|| (from + left.trailing_zeros()) as i8)
}

#[cfg(test)]
mod tests;
