//! Makes mutations of a whole file: other operators, other constants, other returned values, and
//! calls that are left out.

use std::ops::Range;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, BinOp, Expr, Lit, ReturnType, Stmt, Type, UnOp};

use crate::patch::{Form, Patch};

/// A mutation that was made from the text of a file.
#[derive(Debug)]
pub(crate) struct Generated {
    /// The function, what was there and what is there instead.
    pub(crate) name: String,
    pub(crate) at: Range<usize>,
    pub(crate) new: String,
}

impl Generated {
    pub(crate) fn patch(&self, number: u32) -> Patch {
        Patch { number, at: self.at.clone(), form: Form::Instead(self.new.clone()) }
    }
}

/// Returns the mutations of a file, in the order of their places.
pub(crate) fn generate(file: &str, text: &str) -> Result<Vec<Generated>, String> {
    let parsed = syn::parse_file(text).map_err(|error| format!("{file}: {error}"))?;
    let mut found = Finder { file, text, function: Vec::new(), made: Vec::new() };
    found.visit_file(&parsed);
    let mut made = found.made;
    made.sort_by_key(|it| (it.at.start, it.at.end));
    // Twins in one function are told apart by their turn.
    for at in 0..made.len() {
        let (before, rest) = made.split_at_mut(at);
        let twins = before.iter().filter(|it| it.name.split(" #").next() == Some(&*rest[0].name)).count();
        if twins > 0 {
            rest[0].name += &format!(" #{}", twins + 1);
        }
    }
    Ok(made)
}

struct Finder<'a> {
    file: &'a str,
    text: &'a str,
    /// The names of the functions and types around.
    function: Vec<String>,
    made: Vec<Generated>,
}

impl Finder<'_> {
    fn of(&self, node: &impl Spanned) -> &str {
        &self.text[node.span().byte_range()]
    }

    fn add(&mut self, what: &str, at: Range<usize>, new: String) {
        let words = what.split_whitespace().collect::<Vec<_>>().join(" ");
        let short: String = words.chars().take(60).collect();
        let name = format!("{} {}: {short}", self.file, self.function.join("::"));
        self.made.push(Generated { name, at, new });
    }

    /// Adds another value for a function to return, before its first statement.
    fn returned(&mut self, output: &ReturnType, block: &syn::Block) {
        let value = match output {
            ReturnType::Default => Some(String::new()),
            ReturnType::Type(_, of) => instead(of, self.of(of)),
        };
        let start = block.span().byte_range().start + 1;
        if let (Some(value), false) = (value, block.stmts.is_empty()) {
            self.add(&format!("returns {value}"), start..start, format!("return {value};"));
        }
    }
}

/// Returns a value of a type that a function may return instead of its own.
fn instead(of: &Type, text: &str) -> Option<String> {
    let Type::Path(path) = of else { return None };
    let last = path.path.segments.last()?;
    let inner = text.split_once('<').map(|it| it.1).unwrap_or_default();
    Some(match &*last.ident.to_string() {
        "bool" => "true".into(),
        "Option" => "None".into(),
        "Result" if inner.starts_with("()") => "Ok(())".into(),
        "Result" if inner.starts_with("bool") => "Ok(true)".into(),
        "Result" | "Self" | "Box" | "Arc" => return None,
        "u8" | "u16" | "u32" | "u64" | "usize" | "i8" | "i16" | "i32" | "i64" | "isize" => "1".into(),
        "f32" | "f64" => "1.0".into(),
        _ => "Default::default()".into(),
    })
}

fn other(op: &BinOp) -> Option<&'static str> {
    Some(match op {
        BinOp::Add(_) => "-",
        BinOp::Sub(_) => "+",
        BinOp::Mul(_) => "+",
        BinOp::Div(_) => "*",
        BinOp::Rem(_) => "/",
        BinOp::And(_) => "||",
        BinOp::Or(_) => "&&",
        BinOp::BitXor(_) => "&",
        BinOp::BitAnd(_) => "|",
        BinOp::BitOr(_) => "&",
        BinOp::Shl(_) => ">>",
        BinOp::Shr(_) => "<<",
        BinOp::Eq(_) => "!=",
        BinOp::Ne(_) => "==",
        BinOp::Lt(_) => "<=",
        BinOp::Le(_) => "<",
        BinOp::Gt(_) => ">=",
        BinOp::Ge(_) => ">",
        BinOp::AddAssign(_) => "-=",
        BinOp::SubAssign(_) => "+=",
        BinOp::MulAssign(_) => "+=",
        BinOp::BitAndAssign(_) => "|=",
        BinOp::BitOrAssign(_) => "&=",
        BinOp::ShlAssign(_) => ">>=",
        BinOp::ShrAssign(_) => "<<=",
        _ => return None,
    })
}

/// Whether an expression has `let` in it, which may not be moved.
fn binds(expr: &Expr) -> bool {
    struct Let(bool);
    impl<'ast> Visit<'ast> for Let {
        fn visit_expr_let(&mut self, _: &'ast syn::ExprLet) {
            self.0 = true;
        }
    }
    let mut found = Let(false);
    found.visit_expr(expr);
    found.0
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|it| {
        it.path().is_ident("test")
            || it.path().is_ident("cfg")
                && it.meta.require_list().is_ok_and(|list| list.tokens.to_string().contains("test"))
    })
}

impl Finder<'_> {
    /// Looks for mutations in a function that runs when the program does, and is no test.
    fn function(&mut self, attributes: &[syn::Attribute], signature: &syn::Signature, block: &syn::Block) {
        if is_test(attributes) || signature.constness.is_some() {
            return;
        }
        self.function.push(signature.ident.to_string());
        self.returned(&signature.output, block);
        visit::visit_block(self, block);
        self.function.pop();
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.attrs, &item.sig, &item.block);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.attrs, &item.sig, &item.block);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        // What is printed to debug is nobody's promise.
        if item.trait_.as_ref().is_some_and(|it| self.of(&it.0).ends_with("Debug")) {
            return;
        }
        if let Type::Path(path) = &*item.self_ty {
            self.function.extend(path.path.segments.last().map(|it| it.ident.to_string()));
            visit::visit_item_impl(self, item);
            self.function.pop();
        }
    }

    // Constants cannot ask which mutation is in force, nor can types and patterns.
    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_trait_item_const(&mut self, _: &'ast syn::TraitItemConst) {}
    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}
    fn visit_type(&mut self, _: &'ast Type) {}
    fn visit_pat(&mut self, _: &'ast syn::Pat) {}
    fn visit_attribute(&mut self, _: &'ast Attribute) {}
    fn visit_generics(&mut self, _: &'ast syn::Generics) {}
    fn visit_angle_bracketed_generic_arguments(&mut self, _: &'ast syn::AngleBracketedGenericArguments) {}

    fn visit_expr_repeat(&mut self, expr: &'ast syn::ExprRepeat) {
        self.visit_expr(&expr.expr);
    }

    fn visit_expr_binary(&mut self, expr: &'ast syn::ExprBinary) {
        if let Some(op) = other(&expr.op)
            && !binds(&expr.left)
            && !binds(&expr.right)
        {
            let new = format!("{} {op} {}", self.of(&expr.left), self.of(&expr.right));
            let what = format!("{} -> {op}", self.of(expr));
            self.add(&what, expr.span().byte_range(), new);
        }
        visit::visit_expr_binary(self, expr);
    }

    fn visit_expr_unary(&mut self, expr: &'ast syn::ExprUnary) {
        if matches!(expr.op, UnOp::Not(_) | UnOp::Neg(_)) {
            let new = self.of(&expr.expr).to_owned();
            self.add(&format!("{} -> {new}", self.of(expr)), expr.span().byte_range(), new);
        }
        visit::visit_expr_unary(self, expr);
    }

    fn visit_expr_lit(&mut self, expr: &'ast syn::ExprLit) {
        let at = expr.span().byte_range();
        let new = match &expr.lit {
            Lit::Bool(it) => (!it.value).to_string(),
            Lit::Int(it) => match it.base10_parse::<u64>() {
                Ok(value) => format!("{}{}", value.wrapping_add(1), it.suffix()),
                Err(_) => return,
            },
            _ => return,
        };
        self.add(&format!("{} -> {new}", self.of(expr)), at, new);
    }

    fn visit_stmt(&mut self, stmt: &'ast Stmt) {
        if let Stmt::Expr(expr, Some(_)) = stmt {
            let call = match expr {
                Expr::Try(inner) => &inner.expr,
                expr => expr,
            };
            if matches!(call, Expr::Call(_) | Expr::MethodCall(_)) {
                let what = format!("without {}", self.of(stmt));
                self.add(&what, stmt.span().byte_range(), String::new());
            }
        }
        visit::visit_stmt(self, stmt);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_constants_values_and_calls_are_changed_and_constants_are_not() {
        let text = "const N: u32 = 1 + 2;\nfn f(a: u32) -> bool {\n    g(a);\n    !(a < 7)\n}\n#[cfg(test)]\nmod tests { fn t() { u(1) } }\n";
        let made: Vec<_> = generate("x.rs", text).unwrap().into_iter().map(|it| (it.name, it.new)).collect();
        let expected = [
            ("x.rs f: returns true", "return true;"),
            ("x.rs f: without g(a);", ""),
            ("x.rs f: !(a < 7) -> (a < 7)", "(a < 7)"),
            ("x.rs f: a < 7 -> <=", "a <= 7"),
            ("x.rs f: 7 -> 8", "8"),
        ];
        assert_eq!(made, expected.map(|(name, new)| (name.to_owned(), new.to_owned())));
    }
}
