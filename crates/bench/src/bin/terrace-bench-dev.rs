//! Development only: runs a bench without the product's command line.
fn main() -> anyhow::Result<()> {
    let mut options = terrace_bench::Options::default();
    let mut args = std::env::args().skip(1);
    let name = args.next().unwrap_or("list".into());
    while let Some(a) = args.next() {
        let mut v = || args.next().unwrap();
        match a.as_str() {
            "--json" => options.json = true,
            "--out" => options.out_dir = Some(v().into()),
            "--repeats" => options.repeats = v().parse()?,
            "--seconds" => options.seconds = v().parse()?,
            "--only" => options.only.push(v()),
            "--scale" => options.scale_divisor = v().parse()?,
            "--exe" => options.server_exe = Some(v().into()),
            _ => anyhow::bail!("what is {a}?"),
        }
    }
    std::process::exit(terrace_bench::run(&name, options)?)
}
