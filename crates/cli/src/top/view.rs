//! Draws the screen in a terminal. Promises: whatever the terminal's size, nothing panics; what does not fit is cut. Never:
//! computes a figure.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Gauge, Paragraph, Row, Table};

use super::screen::{Called, Program, Screen, Whose, amounts, bytes};

/// Colours that dark and light terminals both show.
const HEAD: Style = Style::new().add_modifier(Modifier::BOLD);

/// Draws all of it.
pub fn draw(frame: &mut Frame<'_>, screen: &Screen) {
    let terraces_rows = screen.terraces.len() as u16 + 3;
    let areas = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(terraces_rows),
        Constraint::Length(3),
        Constraint::Length(3),
        Constraint::Length(5),
        Constraint::Min(3),
        Constraint::Length(1),
    ])
    .split(frame.area());
    frame.render_widget(Paragraph::new(screen.title()).style(HEAD), areas[0]);
    terraces(frame, screen, areas[1]);
    gauge(
        frame,
        areas[2],
        "DRAM",
        screen.used_share(),
        &screen.cap_line(),
        Color::Cyan,
    );
    gauge(
        frame,
        areas[3],
        screen.whose.gauge_title(),
        screen.whose.share(),
        &screen.whose.line(),
        Color::Yellow,
    );
    let device = vec![
        Line::from(screen.device_line()),
        Line::from(amounts("read/s", &screen.read)),
        Line::from(amounts("written/s", &screen.written)),
    ];
    frame.render_widget(
        Paragraph::new(device).block(Block::bordered().title("Device")),
        areas[4],
    );
    match &screen.whose {
        Whose::Server(server) => commands(frame, &server.commands, areas[5]),
        Whose::Program(of) => program(frame, of, areas[5]),
    }
    frame.render_widget(Paragraph::new("q ends"), areas[6]);
}

fn gauge(frame: &mut Frame<'_>, area: Rect, title: &str, share: f64, label: &str, colour: Color) {
    let gauge = Gauge::default()
        .block(Block::bordered().title(title.to_string()))
        .gauge_style(Style::new().fg(colour))
        .label(label.to_string())
        .ratio(share);
    frame.render_widget(gauge, area);
}

fn terraces(frame: &mut Frame<'_>, screen: &Screen, area: Rect) {
    let rows = screen.terraces.iter().map(|t| {
        Row::new([
            t.name.to_string(),
            bytes(t.live_bytes),
            bytes(t.size_bytes),
            format!("{:.0}", t.hits_per_s),
            format!("{:.1}%", t.share_percent),
        ])
    });
    let widths = [8, 12, 12, 12, 8].map(Constraint::Length);
    let head = Row::new(["terrace", "live", "size", "hits/s", "share"]).style(HEAD);
    let table = Table::new(rows, widths)
        .header(head)
        .block(Block::bordered().title("Terraces"));
    frame.render_widget(table, area);
}

fn program(frame: &mut Frame<'_>, program: &Program, area: Rect) {
    let lines = program.lines().map(Line::from).to_vec();
    let lines = Paragraph::new(lines).block(Block::bordered().title("Program"));
    frame.render_widget(lines, area);
}

fn commands(frame: &mut Frame<'_>, commands: &[Called], area: Rect) {
    let rows = commands.iter().map(|c| {
        let shown = [c.mean_us, c.p50_us, c.p99_us].map(|us| format!("{us:.1}"));
        let [mean, p50, p99] = shown;
        let errors = format!("{:.0}", c.failed_per_s);
        Row::new([
            c.name.clone(),
            format!("{:.0}", c.per_s),
            mean,
            p50,
            p99,
            errors,
        ])
    });
    let widths = [20, 10, 10, 10, 10, 9].map(Constraint::Length);
    let names = [
        "command", "calls/s", "mean us", "p50 us", "p99 us", "errors/s",
    ];
    let table = Table::new(rows, widths)
        .header(Row::new(names).style(HEAD))
        .block(Block::bordered().title("Commands"));
    frame.render_widget(table, area);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::top::{program, screen};

    fn drawn(width: u16, height: u16, screen: &Screen) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, screen)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn a_program_has_the_same_screen() {
        let text = drawn(120, 30, &program::tests::example());
        for want in [
            "terrace 0.1.0 run, process 42 (cc1): 300.0M served, 1000 faults/s",
            "│dram     7.6M         8.0M         150          75.0%",
            "│ssd      190.7M       381.5M       50           25.0%",
            "cap 48.0M of 64.0M: segments 8.0M, pages 40.0M",
            "┌Time in faults",
            "faults take 25.0% of a thread's time",
            "│device 100 reads/s, 0 writes/s, 0 flushes/s",
            "│written/s: updates 2.0M",
            "┌Program",
            "│process: 70.0M of DRAM now, 80.0M at most",
            "│pages: 40.0M seen without a fault, of 300.0M served",
            "│faults 1000/s, pages fetched 300/s, evicted 400/s, of these stored 200/s; 0 faults failed so far",
            "q ends",
        ] {
            assert!(text.contains(want), "{want}\n{text}");
        }
        assert!(!text.contains("Commands"), "{text}");
    }

    #[test]
    fn all_figures_are_on_the_screen() {
        let text = drawn(120, 30, &screen::tests::example());
        for want in [
            "┌Terraces",
            "│dram     38.1M        48.0M        750          75.0%",
            "│ssd      190.7M       381.5M       250          25.0%",
            "cap 49.0M of 64.0M: segments 48.0M, directory 1.0M",
            "dirty 2.0M of 8.0M",
            "│device 250 reads/s, 0 writes/s, 1 flushes/s",
            "│read/s: entries 1000.0K",
            "│written/s: updates 2.0M",
            "│get                  500        20.0       3.0        90.1       0",
            "q ends",
        ] {
            assert!(text.contains(want), "{want}\n{text}");
        }
        // A gauge at three quarters is three quarters full.
        let filled = text.lines().find(|l| l.contains("cap 49.0M")).unwrap();
        let end = filled
            .chars()
            .collect::<Vec<_>>()
            .into_iter()
            .rposition(|c| c == '█')
            .unwrap();
        assert!((85..97).contains(&end), "{end}\n{text}");
    }

    #[test]
    fn small_terminals_cut_it() {
        for (width, height) in [(1, 1), (10, 3), (40, 12), (80, 24), (300, 5)] {
            drawn(width, height, &screen::tests::example());
            drawn(width, height, &program::tests::example());
        }
    }
}
