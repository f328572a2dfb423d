//! The header frame of a REQUEST (protocol.md section 4).

/// The headers the broker acts on. Unknown ones are carried on with the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RequestHeaders {
    /// Send the result to the client.
    pub reply_requested: bool,
    /// The original's job manager answers with a REPLY: it looks for the text
    /// `reply-requested` anywhere in the frame.
    pub worker_replies: bool,
    /// Durable before it is accepted.
    pub guarantee: bool,
    /// Further runs after a failure.
    pub retry_count: u32,
    /// Seconds until the job is killed; 0 = `global_timeout`.
    pub timeout_secs: u32,
    /// Seconds to hold the job first.
    pub delay_secs: u32,
    /// Fold equal jobs for this many seconds.
    pub debounce_secs: u32,
}

/// A known header whose number cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("header without a number of ASCII digits below 2^32")]
pub struct BadHeader;

impl RequestHeaders {
    /// Reads the csv. Names are exact; of duplicates the last counts.
    ///
    /// # Errors
    /// [`BadHeader`] if a header that takes a number has none, or one that is not ASCII digits,
    /// or one that does not fit 32 bits.
    #[inline]
    pub fn parse(csv: &[u8]) -> Result<RequestHeaders, BadHeader> {
        match csv {
            b"" => Ok(RequestHeaders::default()),
            b"reply-requested" => Ok(RequestHeaders {
                reply_requested: true,
                worker_replies: true,
                ..RequestHeaders::default()
            }),
            _ => RequestHeaders::parse_any(csv),
        }
    }

    fn parse_any(csv: &[u8]) -> Result<RequestHeaders, BadHeader> {
        const REPLIES: &[u8] = b"reply-requested";
        let mut headers = RequestHeaders {
            worker_replies: csv.windows(REPLIES.len()).any(|part| part == REPLIES),
            ..RequestHeaders::default()
        };
        for item in csv.split(|byte| *byte == b',') {
            match item {
                b"reply-requested" => headers.reply_requested = true,
                b"guarantee" => headers.guarantee = true,
                _ => {
                    if let Some(number) = numbered(item, b"retry-count") {
                        headers.retry_count = number?;
                    } else if let Some(number) = numbered(item, b"timeout") {
                        headers.timeout_secs = number?;
                    } else if let Some(number) = numbered(item, b"delay") {
                        headers.delay_secs = number?;
                    } else if let Some(number) = numbered(item, b"debounce") {
                        headers.debounce_secs = number?;
                    }
                }
            }
        }
        Ok(headers)
    }
}

/// `Some` if `item` is `name` or `name:...`; the number behind the colon.
pub(super) fn numbered(item: &[u8], name: &[u8]) -> Option<Result<u32, BadHeader>> {
    let rest = item.strip_prefix(name)?;
    match rest.split_first() {
        None => Some(Err(BadHeader)),
        Some((b':', digits)) => Some(number(digits)),
        // A longer name that merely begins with this one.
        Some(_) => None,
    }
}

/// A number of ASCII digits that fits 32 bits.
pub(super) fn number(digits: &[u8]) -> Result<u32, BadHeader> {
    if digits.is_empty() {
        return Err(BadHeader);
    }
    digits.iter().try_fold(0_u32, |sum, digit| {
        let value = digit.wrapping_sub(b'0');
        if value > 9 {
            return Err(BadHeader);
        }
        sum.checked_mul(10)
            .and_then(|sum| sum.checked_add(u32::from(value)))
            .ok_or(BadHeader)
    })
}
