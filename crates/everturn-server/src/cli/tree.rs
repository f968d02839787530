//! A session and its forks, drawn as a tree.
//!
//! A trunk runs straight down, the oldest turn on top; whatever left it hangs to its right, above the turn it left it
//! for. Which child continues a trunk is told by standing: `main`'s line goes on with `main`'s line, a branch's with a
//! branch's, and what is on no branch with its like. Void turns and forks never continue one.

mod grow;

pub(crate) use grow::{Log, short};

use super::terminal::{Ink, Style};

/// Titles are cut here, so that what stands beside them stays on the line.
const MAX_TITLE: usize = 44;
/// How wide the graph with its titles is at least: narrower trees would have ragged columns from one run to the next.
const MIN_WIDTH: usize = 40;

/// Nodes in the order of the log: a parent comes before its children, the first one is the root.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    pub(crate) nodes: Vec<Node>,
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) parent: Option<usize>,
    pub(crate) kind: Kind,
    pub(crate) standing: Standing,
    pub(crate) title: String,
    /// The answer, or what went wrong.
    pub(crate) detail: Option<String>,
    /// The short id of the snapshot that names the node's end.
    pub(crate) snapshot: Option<String>,
    /// The branches that stand here.
    pub(crate) heads: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Where a session or a fork begins.
    Session,
    Turn,
    /// A turn that did not complete.
    Void,
    /// A change outside a turn.
    Edit,
    /// A turn that has not ended yet.
    Running,
}

/// Whose line a node is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Standing {
    Nobody,
    Branch,
    Main,
}

/// One line of the drawing before its columns are aligned.
enum Row {
    Node {
        text: String,
        /// How many characters of the text are seen.
        width: usize,
        snapshot: String,
        note: String,
    },
    Detail(String),
}

impl Tree {
    /// The drawing, one line per node and one per detail.
    pub(crate) fn draw(&self, style: Style) -> String {
        let mut drawing = Drawing { nodes: &self.nodes, children: self.children(), style, rows: Vec::new() };
        if !self.nodes.is_empty() {
            drawing.column(0, "", "");
        }
        align(&drawing.rows)
    }

    fn children(&self) -> Vec<Vec<usize>> {
        let mut children = vec![Vec::new(); self.nodes.len()];
        for (at, node) in self.nodes.iter().enumerate() {
            if let Some(parent) = node.parent {
                children[parent].push(at);
            }
        }
        children
    }
}

struct Drawing<'a> {
    nodes: &'a [Node],
    children: Vec<Vec<usize>>,
    style: Style,
    rows: Vec<Row>,
}

impl Drawing<'_> {
    /// A trunk and everything that hangs from it. `lead` stands before its first line, `rest` before the others.
    fn column(&mut self, first: usize, lead: &str, rest: &str) {
        let glyphs = self.style.glyphs;
        let (mut at, mut lead) = (first, lead);
        loop {
            let mut sides = self.children[at].clone();
            let trunk = sides.iter().position(|child| self.continues(at, *child));
            let trunk = trunk.map(|index| sides.remove(index));
            let has_children = trunk.is_some() || !sides.is_empty();
            self.node(at, lead, rest, if has_children { glyphs.stem } else { " " });
            for (i, side) in sides.iter().enumerate() {
                let goes_on = trunk.is_some() || i + 1 < sides.len();
                let (turn_off, beside) = if goes_on { (glyphs.side, glyphs.stem) } else { (glyphs.last_side, " ") };
                self.column(*side, &format!("{rest}{turn_off}"), &format!("{rest}{beside} "));
            }
            match trunk {
                Some(next) => (at, lead) = (next, rest),
                None => return,
            }
        }
    }

    fn continues(&self, parent: usize, child: usize) -> bool {
        let (parent, child) = (&self.nodes[parent], &self.nodes[child]);
        parent.standing == child.standing && !matches!(child.kind, Kind::Void | Kind::Session)
    }

    fn node(&mut self, at: usize, lead: &str, rest: &str, stem: &str) {
        let (node, style) = (&self.nodes[at], self.style);
        let (glyph, ink) = match node.kind {
            Kind::Session => (style.glyphs.session, Ink::Name),
            Kind::Turn => (style.glyphs.turn, Ink::Good),
            Kind::Void => (style.glyphs.void, Ink::Bad),
            Kind::Edit => (style.glyphs.edit, Ink::Name),
            Kind::Running => (style.glyphs.running, Ink::Head),
        };
        let title = clip(&node.title, style.glyphs.cut);
        let title_ink = if node.standing == Standing::Nobody { Ink::Faint } else { Ink::Strong };
        self.rows.push(Row::Node {
            width: lead.chars().count() + 2 + title.chars().count(),
            text: format!(
                "{}{} {}",
                style.paint(Ink::Faint, lead),
                style.paint(ink, glyph),
                style.paint(title_ink, &title)
            ),
            snapshot: style.paint(Ink::Faint, &format!("{:8}", node.snapshot.as_deref().unwrap_or_default())),
            note: note(node, style),
        });
        if let Some(detail) = &node.detail {
            let text = format!("{rest}{stem} {}", harmless(detail));
            self.rows.push(Row::Detail(style.paint(Ink::Faint, &text)));
        }
    }
}

/// Puts snapshots and notes into columns.
fn align(rows: &[Row]) -> String {
    let widths = rows.iter().map(|row| if let Row::Node { width, .. } = row { *width } else { 0 });
    let column = widths.max().unwrap_or(0).max(MIN_WIDTH);
    let mut out = String::new();
    for row in rows {
        let line = match row {
            Row::Detail(text) => text.clone(),
            Row::Node { text, width, snapshot, note } => {
                format!("{text}{}  {snapshot}  {note}", " ".repeat(column - width))
            }
        };
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

fn note(node: &Node, style: Style) -> String {
    if !node.heads.is_empty() {
        return style.paint(Ink::Head, &format!("{} {}", style.glyphs.head, harmless(&node.heads.join(", "))));
    }
    match (node.kind, node.standing) {
        (Kind::Void, _) => style.paint(Ink::Bad, "void"),
        (Kind::Running, _) => style.paint(Ink::Head, "running"),
        (_, Standing::Nobody) => style.paint(Ink::Faint, "kept, on no branch"),
        _ => String::new(),
    }
}

fn clip(text: &str, cut: &str) -> String {
    let text = harmless(text);
    if text.chars().count() <= MAX_TITLE {
        return text;
    }
    let kept: String = text.chars().take(MAX_TITLE - cut.chars().count()).collect();
    format!("{}{cut}", kept.trim_end())
}

/// What people and models say may hold escape sequences or turn the writing around; a drawing must not obey them.
fn harmless(text: &str) -> String {
    let turns = |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().map(|c| if c.is_control() || turns(c) { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::super::terminal::{ASCII, UNICODE};
    use super::*;

    fn node(parent: usize, kind: Kind, standing: Standing, title: &str) -> Node {
        let parent = Some(parent);
        Node { parent, kind, standing, title: title.to_owned(), detail: None, snapshot: None, heads: Vec::new() }
    }

    fn named(mut node: Node, snapshot: &str, heads: &[&str]) -> Node {
        node.snapshot = Some(snapshot.to_owned());
        node.heads = heads.iter().map(ToString::to_string).collect();
        node
    }

    fn saying(mut node: Node, detail: &str) -> Node {
        node.detail = Some(detail.to_owned());
        node
    }

    fn sample() -> Tree {
        use Kind::{Edit, Running, Session, Turn, Void};
        use Standing::{Branch, Main, Nobody};
        let root = Node { parent: None, ..named(node(0, Session, Main, "tea"), "00000001", &[]) };
        let nodes = vec![
            root,
            saying(named(node(0, Turn, Main, "Which tea?"), "00000002", &[]), "Green."),
            saying(named(node(1, Void, Nobody, "Buy it"), "00000003", &[]), "failed: no money"),
            named(node(1, Turn, Branch, "Why not black?"), "00000004", &[]),
            node(3, Turn, Branch, "And milk?"),
            named(node(4, Turn, Branch, "And sugar?"), "00000006", &["strong"]),
            node(1, Edit, Main, "compacted"),
            named(node(6, Turn, Main, "How hot?"), "00000007", &["main", "spare"]),
            saying(named(node(7, Turn, Nobody, "Boiling?"), "00000008", &[]), "No!"),
            node(8, Turn, Nobody, "Sure?"),
            node(1, Session, Main, "fork tea-2"),
            node(10, Running, Main, "Oolong?"),
        ];
        Tree { nodes }
    }

    #[test]
    fn trunks_run_down_and_the_rest_hangs_to_the_right() {
        let expected = "\
◆ tea                                     00000001
● Which tea?                              00000002
│ Green.
├─✗ Buy it                                00000003  void
│   failed: no money
├─● Why not black?                        00000004
│ ● And milk?
│ ● And sugar?                            00000006  ◀ strong
├─◆ fork tea-2
│ ╰─◌ Oolong?                                       running
○ compacted
● How hot?                                00000007  ◀ main, spare
╰─● Boiling?                              00000008  kept, on no branch
  │ No!
  ● Sure?                                           kept, on no branch
";
        let mut tree = sample();
        tree.nodes[11].standing = Standing::Nobody;
        assert_eq!(tree.draw(Style { glyphs: &UNICODE, colour: false }), expected);
    }

    #[test]
    fn ascii_draws_the_same_tree() {
        let drawn = sample().draw(Style { glyphs: &ASCII, colour: false });
        assert!(drawn.is_ascii(), "{drawn}");
        assert!(drawn.contains("|-x Buy it"), "{drawn}");
        assert!(drawn.contains("00000007  < main, spare"), "{drawn}");
        assert!(drawn.contains("`-* Boiling?"), "{drawn}");
    }

    #[test]
    fn colours_change_nothing_but_colours() {
        let plain = sample().draw(Style { glyphs: &UNICODE, colour: false });
        let coloured = sample().draw(Style { glyphs: &UNICODE, colour: true });
        let mut stripped = String::new();
        let mut pieces = coloured.split("\x1b[");
        stripped.push_str(pieces.next().unwrap());
        for piece in pieces {
            stripped.push_str(piece.split_once('m').unwrap().1);
        }
        let trimmed: Vec<_> = stripped.lines().map(str::trim_end).collect();
        assert_eq!(trimmed, plain.lines().collect::<Vec<_>>());
    }

    #[test]
    fn hostile_and_long_titles_stay_on_their_line() {
        let mut tree = sample();
        tree.nodes[1].title = format!("\x1b[2J\n\u{202e}{}", "very ".repeat(40));
        let drawn = tree.draw(Style { glyphs: &ASCII, colour: false });
        assert!(drawn.is_ascii() && !drawn.contains('\x1b'));
        assert!(drawn.contains(" very..."), "{drawn}");
        assert_eq!(drawn.lines().count(), sample().draw(Style { glyphs: &ASCII, colour: false }).lines().count());
    }

    #[test]
    fn nothing_draws_as_nothing() {
        assert_eq!(Tree::default().draw(Style { glyphs: &ASCII, colour: false }), "");
    }
}
