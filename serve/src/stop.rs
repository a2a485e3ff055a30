//! Stop strings: find one wherever the token boundaries fall, without ever showing a part of it.
//!
//! The stop that is complete first ends the text (of two that end together, the longer). Text is held back only while it
//! may still become a stop. Both rules speak about characters, not about pieces, so the result does not depend on how
//! the text is cut into pieces.

/// Watches one text for stop strings.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
}

/// What a piece of text came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scanned {
    /// Text that is certainly not part of a stop.
    pub text: String,
    /// The stop that was completed; the text ends before it.
    pub stop: Option<String>,
}

impl StopMatcher {
    /// A matcher for `stops`; empty ones are ignored.
    pub fn new(stops: impl IntoIterator<Item = String>) -> Self {
        Self { stops: stops.into_iter().filter(|stop| !stop.is_empty()).collect(), held: String::new() }
    }

    /// Takes the next piece.
    pub fn push(&mut self, piece: &str) -> Scanned {
        self.held.push_str(piece);
        if let Some((start, stop)) = self.first_complete() {
            let text = self.held[..start].to_owned();
            self.held.clear();
            return Scanned { text, stop: Some(stop) };
        }
        let keep = self.held.len() - self.possible_start();
        Scanned { text: self.held.drain(..self.held.len() - keep).collect(), stop: None }
    }

    /// The end of the text: what was held back was no stop after all.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    fn first_complete(&self) -> Option<(usize, String)> {
        self.stops
            .iter()
            .filter_map(|stop| self.held.find(stop.as_str()).map(|start| (start + stop.len(), start, stop)))
            .min_by_key(|&(end, start, _)| (end, start))
            .map(|(_, start, stop)| (start, stop.clone()))
    }

    /// Where the longest suffix begins that is the beginning of a stop.
    fn possible_start(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let mut start = self.held.len().saturating_sub(longest.saturating_sub(1));
        while start < self.held.len() {
            if self.held.is_char_boundary(start) && self.stops.iter().any(|stop| stop.starts_with(&self.held[start..]))
            {
                break;
            }
            start += 1;
        }
        start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<String>) {
        let mut matcher = StopMatcher::new(stops.iter().map(|&stop| stop.to_owned()));
        let mut text = String::new();
        for piece in pieces {
            let scanned = matcher.push(piece);
            text.push_str(&scanned.text);
            if scanned.stop.is_some() {
                return (text, scanned.stop);
            }
        }
        text.push_str(&matcher.finish());
        (text, None)
    }

    /// Every way to cut `text` between characters.
    fn all_cuts(text: &str) -> impl Iterator<Item = Vec<&str>> {
        let inner: Vec<usize> = text.char_indices().map(|(at, _)| at).skip(1).collect();
        (0..1_u32 << inner.len()).map(move |mask| {
            let mut bounds = vec![0];
            bounds.extend(inner.iter().enumerate().filter(|(bit, _)| mask >> bit & 1 == 1).map(|(_, &at)| at));
            bounds.push(text.len());
            bounds.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect()
        })
    }

    #[test]
    fn the_result_does_not_depend_on_the_pieces() {
        let cases: [(&[&str], &str, &str, Option<&str>); 7] = [
            (&["DEFGHIJ"], "ABCDEFGHIJKL", "ABC", Some("DEFGHIJ")),
            (&["abcdef", "cd"], "xabcdefg", "xab", Some("cd")),
            (&["aab"], "aaaab!", "aa", Some("aab")),
            (&["END", "ND"], "the END.", "the ", Some("END")),
            (&["é€"], "caféé€s", "café", Some("é€")),
            (&["\n\n"], "a\nb\n\nc", "a\nb", Some("\n\n")),
            (&["stop"], "sto sto", "sto sto", None),
        ];
        for (stops, text, expected, stop) in cases {
            for pieces in all_cuts(text) {
                assert_eq!(run(stops, &pieces), (expected.to_owned(), stop.map(str::to_owned)), "{pieces:?}");
            }
        }
    }

    #[test]
    fn only_a_possible_beginning_is_held_back() {
        let mut matcher = StopMatcher::new(["<end>".to_owned()]);
        assert_eq!(matcher.push("one <e").text, "one ");
        assert_eq!(matcher.push("m> two").text, "<em> two");
        assert_eq!(matcher.push(" <").text, " ");
        assert_eq!(matcher.finish(), "<");
    }
}
