//! Text that came from elsewhere (compilers, models, logs), made safe to show.

/// `text` without escape sequences, control and direction-changing characters, cut to `limit` characters.
pub fn clean(text: &str, limit: usize) -> String {
    let mut out = String::new();
    let mut chars = text.chars().peekable();
    let mut count = 0;
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            skip_escape(&mut chars);
            continue;
        }
        let hidden =
            matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}');
        if hidden || (c.is_control() && c != '\t') {
            continue;
        }
        if count == limit {
            out.push('…');
            break;
        }
        out.push(c);
        count += 1;
    }
    out
}

/// Several lines made safe, cut to `limit` characters in all.
pub fn clean_lines(text: &str, limit: usize) -> String {
    let mut out = String::new();
    let mut left = limit;
    for line in text.lines() {
        if left == 0 {
            out.push('…');
            break;
        }
        let line = clean(line, left);
        left = left.saturating_sub(line.chars().count() + 1);
        out.push_str(&line);
        out.push('\n');
    }
    out
}

/// Drops the rest of a CSI or OSC sequence.
fn skip_escape(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    match chars.next() {
        Some('[') => {
            for c in chars.by_ref() {
                if ('\u{40}'..='\u{7e}').contains(&c) {
                    break;
                }
            }
        }
        Some(']') => {
            for c in chars.by_ref() {
                if c == '\u{7}' {
                    break;
                }
                if c == '\u{1b}' {
                    chars.next();
                    break;
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::clean;

    #[test]
    fn escapes_and_hidden_characters_go_and_length_is_bounded() {
        assert_eq!(clean("\u{1b}[31mred\u{1b}[0m \u{202e}x\u{1b}]0;title\u{7}y\r", 99), "red xy");
        assert_eq!(clean("abcdef", 3), "abc…");
        assert_eq!(clean("größe", 5), "größe");
    }
}
