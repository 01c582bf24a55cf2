//! Reports of panics: what the builder puts before each trap.
//!
//! A panic on a GPU is a trap, which ends the context and tells the host nothing. With reports, the
//! first thread that traps writes the number of its entry, its block and its position in the block
//! to a record in page-locked host memory, which outlives the context. The host puts the address of
//! the record into the first word of `thalweg_panic` when it has loaded the module. The second word
//! is 0, then 1 while a thread writes, then 2. Other threads that trap wait for the 2, but not for
//! ever, because a trap of theirs could end the kernel before the record is complete.
//!
//! The record has 7 words of 32 bits: the number of the entry in the text, from 1 on, and then the
//! position of the block and that of the thread. The first word is written last.
//!
//! Nothing changes but the code at traps, which no thread reaches that does not panic.

/// Gives each trap of an entry a report. Traps in functions that are not inlined keep none, because
/// such a function has several entries.
pub(crate) fn reported(body: &str) -> String {
    let mut text = String::with_capacity(body.len());
    let (mut entries, mut of_entry, mut traps) = (0, None, 0);
    for line in body.lines() {
        if line.starts_with(".visible .entry ") {
            entries += 1;
            of_entry = Some(entries);
        }
        if let Some(entry) = of_entry
            && matches!(line.trim(), "trap; exit;" | "trap;")
        {
            text += &report(entry, traps);
            traps += 1;
        }
        if line == "}" {
            of_entry = None;
        }
        text += line;
        text.push('\n');
        if line.starts_with(".address_size") {
            text += "\n.visible .global .align 8 .b64 thalweg_panic[2];\n";
        }
    }
    text
}

/// Returns the report of a trap. `trap` makes its labels differ from those of others.
fn report(entry: usize, trap: usize) -> String {
    let mut text = format!(
        "\t{{\n\
         \t.reg .pred \t%thalweg_p;\n\
         \t.reg .b32 \t%thalweg_a, %thalweg_n;\n\
         \t.reg .b64 \t%thalweg_to;\n\
         \tld.global.b64 \t%thalweg_to, [thalweg_panic];\n\
         \tsetp.eq.s64 \t%thalweg_p, %thalweg_to, 0;\n\
         \t@%thalweg_p bra \t$thalweg_end_{trap};\n\
         \tatom.global.cas.b32 \t%thalweg_a, [thalweg_panic+8], 0, 1;\n\
         \tsetp.ne.s32 \t%thalweg_p, %thalweg_a, 0;\n\
         \tmov.b32 \t%thalweg_n, 0;\n\
         \t@%thalweg_p bra \t$thalweg_wait_{trap};\n"
    );
    for (i, register) in ["ctaid.x", "ctaid.y", "ctaid.z", "tid.x", "tid.y", "tid.z"].iter().enumerate() {
        text += &format!("\tmov.u32 \t%thalweg_a, %{register};\n");
        text += &format!("\tst.volatile.global.b32 \t[%thalweg_to+{}], %thalweg_a;\n", 4 + 4 * i);
    }
    text += &format!(
        "\tmembar.sys;\n\
         \tmov.b32 \t%thalweg_a, {entry};\n\
         \tst.volatile.global.b32 \t[%thalweg_to], %thalweg_a;\n\
         \tmembar.sys;\n\
         \tmov.b32 \t%thalweg_a, 2;\n\
         \tst.volatile.global.b32 \t[thalweg_panic+8], %thalweg_a;\n\
         \tbra.uni \t$thalweg_end_{trap};\n\
         $thalweg_wait_{trap}:\n\
         \tld.volatile.global.b32 \t%thalweg_a, [thalweg_panic+8];\n\
         \tsetp.eq.s32 \t%thalweg_p, %thalweg_a, 2;\n\
         \t@%thalweg_p bra \t$thalweg_end_{trap};\n\
         \tadd.s32 \t%thalweg_n, %thalweg_n, 1;\n\
         \tsetp.lt.u32 \t%thalweg_p, %thalweg_n, 65536;\n\
         \t@%thalweg_p bra \t$thalweg_wait_{trap};\n\
         $thalweg_end_{trap}:\n\
         \t}}\n"
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str = "\
.version 6.3
.target sm_75
.address_size 64
.visible .entry a(
)
{
\tret;
}
.func helper(
)
{
\ttrap; exit;
}
.visible .entry b(
)
{
\t@%p1 bra $L1;
\tret;
$L1:
\ttrap; exit;
$L2:
\ttrap; exit;
}
";

    #[test]
    fn only_traps_of_entries_get_a_report_with_the_number_of_their_entry() {
        let text = reported(BODY);
        let variable = "\n.visible .global .align 8 .b64 thalweg_panic[2];\n";
        let reports = [report(2, 0), report(2, 1)];
        assert!(reports[0].contains("mov.b32 \t%thalweg_a, 2;\n\tst.volatile.global.b32 \t[%thalweg_to], %thalweg_a;"));
        let mut rest = text;
        for added in [variable, &reports[0], &reports[1]] {
            assert_eq!(rest.matches(added).count(), 1, "{rest}");
            rest = rest.replace(added, "");
        }
        assert_eq!(rest, BODY);
    }
}
