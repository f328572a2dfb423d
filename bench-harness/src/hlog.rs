//! Latencies of every interval as an HdrHistogram log (format 1.3, histograms V2 compressed), which
//! the tools of other projects read. Values are nanoseconds, tags are `TARGET.STAGE`.

use crate::failure::{Failure, Result};
use crate::generator::tally::Stage;
use crate::measure::Interval;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Takes an interval of a target.
pub(crate) type Observe<'a> = dyn FnMut(&str, &Interval) -> Result<()> + 'a;

/// Runs `body` and writes the intervals that it observes to `path`, if there is one.
pub(crate) fn recording<T>(
    path: Option<&Path>,
    body: &mut dyn FnMut(&mut Observe<'_>) -> Result<T>,
) -> Result<T> {
    let Some(path) = path else {
        return body(&mut |_, _| Ok(()));
    };
    let failure =
        |error: &dyn std::fmt::Display| Failure::run(format!("{}: {error}", path.display()));
    let mut file = BufWriter::new(File::create(path).map_err(|error| failure(&error))?);
    let mut serializer = V2DeflateSerializer::new();
    let start = SystemTime::now();
    // Interval times count from the base time.
    let base = start
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let result = {
        let mut log = IntervalLogWriterBuilder::new()
            .add_comment("[Histogram log format version 1.3]")
            .add_comment("emq-bench: latencies in nanoseconds, maxima in milliseconds")
            .with_start_time(start)
            .with_base_time(start)
            .with_max_value_divisor(1e6)
            .begin_log_with(&mut file, &mut serializer)
            .map_err(|error| failure(&error))?;
        body(&mut |target, interval| {
            for stage in Stage::ALL {
                let histogram = interval.tally.stage(stage);
                if histogram.is_empty() {
                    continue;
                }
                let tag = tag(target, stage);
                let began = interval.began.checked_sub(base).unwrap_or(Duration::ZERO);
                log.write_histogram(histogram, began, interval.length, Tag::new(&tag))
                    .map_err(|error| failure(&format!("{error:?}")))?;
            }
            Ok(())
        })
    };
    file.flush().map_err(|error| failure(&error))?;
    result
}

/// A tag may not hold commas and blanks.
fn tag(target: &str, stage: Stage) -> String {
    let plain = |c: char| {
        if c == ',' || c.is_whitespace() {
            '_'
        } else {
            c
        }
    };
    target.chars().map(plain).collect::<String>() + "." + stage.name()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::tally::{Tally, Way};
    use hdrhistogram::Histogram;
    use hdrhistogram::serialization::Deserializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    fn interval(latency_ns: u64) -> Interval {
        let mut tally = Tally::new();
        tally.record(&Way {
            sent_ns: 0,
            accepted_ns: None,
            handed_ns: None,
            ended_ns: latency_ns,
        });
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Interval {
            began: since_epoch.unwrap() + Duration::from_millis(500),
            length: Duration::from_secs(1),
            tally,
        }
    }

    #[test]
    fn log_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.hlog");
        recording(Some(&path), &mut |observe| {
            observe("router@/a b,c", &interval(5_000_000))?;
            observe("floor", &interval(7_000_000))
        })
        .unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert!(bytes.starts_with(b"#[Histogram log format version 1.3]"));
        let mut found = Vec::new();
        for entry in IntervalLogIterator::new(&bytes) {
            if let Ok(LogEntry::Interval(interval)) = entry {
                let mut raw = base64_decode(interval.encoded_histogram());
                let histogram: Histogram<u64> = Deserializer::new()
                    .deserialize(&mut std::io::Cursor::new(&mut raw))
                    .unwrap();
                let tag = interval.tag().map(|tag| tag.as_str().to_owned());
                assert!(interval.start_timestamp() < Duration::from_secs(20));
                assert_eq!(interval.duration(), Duration::from_secs(1));
                found.push((tag.unwrap(), histogram.max() / 1_000_000));
            }
        }
        let expected = [("router@/a_b_c.total", 5), ("floor.total", 7)];
        assert_eq!(found, expected.map(|(tag, ms)| (tag.to_owned(), ms)));
    }

    /// The alphabet of RFC 4648, in which the log has its histograms.
    fn base64_decode(text: &str) -> Vec<u8> {
        let digit = |c: u8| match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            _ => 63,
        };
        let (mut bytes, mut bits, mut count) = (Vec::new(), 0_u32, 0);
        for c in text.bytes().filter(|c| *c != b'=') {
            (bits, count) = (bits << 6 | u32::from(digit(c)), count + 6);
            if count >= 8 {
                count -= 8;
                bytes.push((bits >> count) as u8);
                bits &= (1 << count) - 1;
            }
        }
        bytes
    }

    #[test]
    fn file_that_cannot_be_written_is_named() {
        let path = Path::new("/nonexistent/run.hlog");
        let failure = recording(Some(path), &mut |_| Ok(())).unwrap_err();
        assert!(failure.to_string().contains("/nonexistent/run.hlog"));
    }
}
