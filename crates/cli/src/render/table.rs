//! Lists as columns that line up, and one thing as a heading with facts below it: the
//! same everywhere, so that the commands look alike.

use comfy_table::{Table, presets};

use super::{RenderContext, time};

/// Rows as columns, without borders.
pub fn render_table<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header);
    table.add_rows(rows);
    // Tables have a margin.
    let trim = |line: &str| line.strip_prefix(' ').unwrap_or(line).trim_end().to_owned();
    let lines: Vec<String> = table.lines().map(|line| trim(&line)).collect();
    lines.join("\n")
}

/// How long ago, or in how long, a moment in RFC 3339 is; nothing for what is none.
pub fn relative_to_now(text: &str, ctx: &RenderContext) -> String {
    time::parse_timestamp(text)
        .map(|at| time::format_relative(at, ctx.now))
        .unwrap_or_default()
}

/// A heading and, below it, what is known.
pub struct Facts<'a> {
    lines: Vec<String>,
    ctx: &'a RenderContext,
}

impl<'a> Facts<'a> {
    pub fn new(heading: String, ctx: &'a RenderContext) -> Self {
        Self {
            lines: vec![heading],
            ctx,
        }
    }

    /// One fact; an empty one is left out. The width is that of the longest name.
    pub fn add(&mut self, name: &str, value: impl Into<String>) {
        let value = value.into();
        if !value.is_empty() {
            let name = self.ctx.paint.dim(&format!("{name:<14}"));
            self.lines.push(format!("  {name} {value}"));
        }
    }

    pub fn into_text(self) -> String {
        self.lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_without_a_margin() {
        let row = |a: &str, b: &str| [a.to_owned(), b.to_owned()];
        let text = render_table(["A", "LONG"], [row("x", "1"), row("wide one", "2")]);
        assert_eq!(text, "A         LONG\nx         1\nwide one  2");
    }
}
