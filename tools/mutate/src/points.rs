//! Mutation points of a source file, and the text with both variants of each.

use proc_macro2::Span;
use quote::ToTokens;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Block, Expr, Pat, ReturnType, Stmt, Type};

/// Calls that only count, trace or mark: a deletion changes no result.
const UNCHECKED: &[&str] = &[
    "coverage_point",
    "yield_point",
    "trace",
    "clock",
    "prefetch",
    "LaneCounters",
    "counters",
    "yield_now",
    "spin_loop",
];

/// One deliberate change, chosen at run time by its number.
#[derive(Clone, Debug)]
pub struct Point {
    pub id: usize,
    pub line: usize,
    /// Function that contains the point.
    pub function: String,
    pub what: String,
}

#[derive(Debug)]
struct Edit {
    at: usize,
    /// Number of bytes of the source that the text replaces.
    removes: usize,
    opens: bool,
    /// Position in a pre-order walk: an outer expression opens first and closes last.
    order: usize,
    id: usize,
    text: String,
}

/// A rewritten file: its text, and for each mutation the ranges of bytes that belong to it.
pub struct Rewritten {
    pub text: String,
    pub ranges: Vec<(usize, usize, usize)>,
}

pub struct Walk<'a> {
    source: &'a str,
    next: usize,
    order: usize,
    disabled: &'a dyn Fn(usize) -> bool,
    edits: Vec<Edit>,
    /// Type of the surrounding `impl`, followed by `::`.
    of: String,
    /// Surrounding function.
    function: String,
    pub points: Vec<Point>,
}

/// Finds the points of a file, numbered from `first`, and rewrites it; points that are `disabled`
/// keep their numbers.
pub fn rewrite(
    source: &str,
    first: usize,
    disabled: &dyn Fn(usize) -> bool,
) -> (Rewritten, Vec<Point>) {
    let file = syn::parse_file(source).expect("the sources compile");
    let mut walk = Walk {
        source,
        next: first,
        order: 0,
        disabled,
        edits: Vec::new(),
        of: String::new(),
        function: String::new(),
        points: Vec::new(),
    };
    walk.visit_file(&file);
    let (edits, points) = (walk.edits, walk.points);
    (apply(source, edits), points)
}

fn apply(source: &str, mut edits: Vec<Edit>) -> Rewritten {
    edits.sort_by_key(|edit| match edit.opens {
        false => (edit.at, 0, usize::MAX - edit.order),
        true => (edit.at, 1, edit.order),
    });
    let mut text = String::new();
    let mut done = 0;
    let mut ranges: Vec<(usize, usize, usize)> = Vec::new();
    for edit in edits {
        if edit.at > done {
            text.push_str(&source[done..edit.at]);
            done = edit.at;
        }
        let begin = text.len();
        text.push_str(&edit.text);
        done = done.max(edit.at + edit.removes);
        match ranges.iter_mut().find(|(id, ..)| *id == edit.id) {
            Some((_, _, end)) => *end = text.len(),
            None => ranges.push((edit.id, begin, text.len())),
        }
    }
    text.push_str(&source[done..]);
    Rewritten { text, ranges }
}

fn tokens(of: &impl ToTokens) -> String {
    of.to_token_stream().to_string()
}

/// Returns whether this is one of the named mutants, or tests for one.
fn is_named_mutant(expr: &Expr) -> bool {
    match expr {
        Expr::Macro(called) => tokens(&called.mac.path).contains("mutant"),
        Expr::Unary(not) => is_named_mutant(&not.expr),
        Expr::Paren(inner) => is_named_mutant(&inner.expr),
        _ => false,
    }
}

/// Returns whether a statement only counts, traces or marks.
fn is_unchecked(text: &str) -> bool {
    let mut words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.any(|word| UNCHECKED.contains(&word))
}

fn has_let(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

fn is_of_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let text = tokens(attribute);
        text.contains("test") || (text.contains("loom") && !text.contains("not (loom)"))
    })
}

impl Walk<'_> {
    fn range(&self, span: Span) -> (usize, usize) {
        let range = span.byte_range();
        (range.start, range.end)
    }

    /// Numbers `whats.len()` mutants of one place; returns the first number, unless the place is
    /// disabled.
    fn place(&mut self, span: Span, whats: &[String]) -> Option<usize> {
        let id = self.next;
        self.next += whats.len();
        self.order += 1;
        if (self.disabled)(id) {
            return None;
        }
        for (i, what) in whats.iter().enumerate() {
            let line = span.start().line;
            let what = what.replace(['\n', '\t'], " ");
            self.points.push(Point {
                id: id + i,
                line,
                function: self.function.clone(),
                what,
            });
        }
        Some(id)
    }

    fn open(&mut self, id: usize, at: usize, text: impl Into<String>) {
        self.edit(id, at, 0, true, text.into());
    }

    fn close(&mut self, id: usize, at: usize, text: impl Into<String>) {
        self.edit(id, at, 0, false, text.into());
    }

    fn edit(&mut self, id: usize, at: usize, removes: usize, opens: bool, text: String) {
        let order = self.order;
        self.edits.push(Edit {
            at,
            removes,
            opens,
            order,
            id,
            text,
        });
    }

    fn short(&self, span: Span) -> String {
        let (begin, end) = self.range(span);
        let text: String = self.source[begin..end]
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        match text.char_indices().nth(70) {
            Some((at, _)) => format!("{}…", &text[..at]),
            None => text,
        }
    }

    /// Mutates a condition to always true, or always false.
    fn condition(&mut self, cond: &Expr, may_be_true: bool) {
        if is_named_mutant(cond) || matches!(cond, Expr::Lit(_)) {
            return;
        }
        let (begin, end) = self.range(cond.span());
        let text = self.short(cond.span());
        if has_let(cond) {
            if let Some(id) = self.place(cond.span(), &[format!("if {text} → if false")]) {
                self.close(id, end, format!(" && !braid_rt::mutation::is({id})"));
            }
            return;
        }
        let mut whats = vec![format!("{text} → false")];
        if may_be_true {
            whats.push(format!("{text} → true"));
        }
        if let Some(id) = self.place(cond.span(), &whats) {
            let call = if may_be_true { "cond" } else { "only_if" };
            self.open(id, begin, format!("braid_rt::mutation::{call}({id}, "));
            self.close(id, end, ")");
        }
    }

    fn between(&mut self, id: usize, left: &Expr, right: &Expr, text: String) {
        let (end, begin) = (self.range(left.span()).1, self.range(right.span()).0);
        self.edit(id, end, begin - end, false, text);
    }

    fn compare(&mut self, binary: &syn::ExprBinary, op: &str, others: &[&str]) {
        let text = self.short(binary.span());
        let whats: Vec<_> = others
            .iter()
            .map(|other| format!("{text}: {op} → {other}"))
            .collect();
        let Some(id) = self.place(binary.span(), &whats) else {
            return;
        };
        let picks = others
            .iter()
            .enumerate()
            .fold(format!("*l {op} *r"), |all, (i, other)| {
                format!("braid_rt::mutation::pick({}, {all}, *l {other} *r)", id + i)
            });
        self.open(id, self.range(binary.left.span()).0, "(match (&(");
        self.between(id, &binary.left, &binary.right, "), &(".to_owned());
        let end = self.range(binary.right.span()).1;
        self.close(id, end, format!(")) {{ (l, r) => {picks} }})"));
    }

    fn calculate(
        &mut self,
        span: Span,
        left: &Expr,
        right: &Expr,
        end: usize,
        both: [&str; 2],
        what: &str,
    ) {
        let text = self.short(span);
        let Some(id) = self.place(span, &[format!("{text}: {what}")]) else {
            return;
        };
        self.open(id, self.range(left.span()).0, "(match ((");
        self.between(id, left, right, "), (".to_owned());
        let [original, mutated] = both;
        let body = format!("if braid_rt::mutation::is({id}) {{ {mutated} }} else {{ {original} }}");
        let right_end = self.range(right.span()).1;
        self.edit(
            id,
            right_end,
            end - right_end,
            false,
            format!(")) {{ (l, r) => {body} }})"),
        );
    }

    fn logic(&mut self, binary: &syn::ExprBinary, is_and: bool) {
        let text = self.short(binary.span());
        let what = if is_and { "&& → ||" } else { "|| → &&" };
        let Some(id) = self.place(binary.span(), &[format!("{text}: {what}")]) else {
            return;
        };
        let not = if is_and { "" } else { "!" };
        self.open(id, self.range(binary.left.span()).0, "(match (");
        let text =
            format!(") {{ left_{id} => if {not}left_{id} ^ braid_rt::mutation::is({id}) {{ ");
        self.between(id, &binary.left, &binary.right, text);
        let end = self.range(binary.right.span()).1;
        self.close(id, end, format!(" }} else {{ left_{id} }} }})"));
    }

    fn delete(&mut self, span: Span, what: &str) {
        let text = self.short(span);
        if is_unchecked(&text) {
            return;
        }
        let (begin, end) = self.range(span);
        if let Some(id) = self.place(span, &[format!("{what}: {text}")]) {
            self.open(id, begin, format!("if !braid_rt::mutation::is({id}) {{ "));
            self.close(id, end, " }");
        }
    }

    /// Mutates a function to return at once.
    fn body(&mut self, name: &str, output: &ReturnType, block: &Block) {
        self.function = format!("{}{name}", self.of);
        let values: &[&str] = match output {
            ReturnType::Default => &[""],
            ReturnType::Type(_, ty) => match &tokens(&**ty).replace(' ', "")[..] {
                "bool" => &["true", "false"],
                "u64" | "usize" | "u32" | "u16" => &["0", "1"],
                ty if ty.starts_with("Result<()") || ty == "io::Result<()>" => &["Ok(())"],
                "Result<bool>" => &["Ok(true)", "Ok(false)"],
                ty if ty.starts_with("Option<") => &["None"],
                ty if ty.starts_with("Vec<") => &["Vec::new()"],
                _ => return,
            },
        };
        // A body that returns the function's own value is not a mutant.
        let own = tokens(block).replace(' ', "");
        let is_own = |value: &&&str| own == format!("{{{value}}}");
        if block.stmts.is_empty() || values.iter().any(|value| is_own(&value)) && values.len() == 1
        {
            return;
        }
        let values: Vec<&str> = values.iter().filter(|v| !is_own(v)).copied().collect();
        let whats: Vec<_> = values
            .iter()
            .map(|value| format!("return {value}"))
            .collect();
        if let Some(id) = self.place(block.span(), &whats) {
            let text: String = values
                .iter()
                .enumerate()
                .fold(String::new(), |all, (i, value)| {
                    format!(
                        "{all} if braid_rt::mutation::is({}) {{ return {value}; }}",
                        id + i
                    )
                });
            self.open(id, self.range(block.brace_token.span.open()).1, text);
        }
    }
}

impl<'ast> Visit<'ast> for Walk<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_of_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !is_of_tests(&item.attrs) && item.sig.constness.is_none() {
            self.body(&item.sig.ident.to_string(), &item.sig.output, &item.block);
            visit::visit_block(self, &item.block);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let of = item.trait_.as_ref().map(|(_, path, _)| tokens(path));
        // Skip formatting and derived comparisons.
        if !is_of_tests(&item.attrs)
            && !of.is_some_and(|of| of.contains("Debug") || of.contains("Display"))
        {
            self.of = format!("{}::", tokens(&item.self_ty).replace(' ', ""));
            visit::visit_item_impl(self, item);
            self.of.clear();
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_of_tests(&item.attrs) && item.sig.constness.is_none() {
            self.body(&item.sig.ident.to_string(), &item.sig.output, &item.block);
            visit::visit_block(self, &item.block);
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default
            && item.sig.constness.is_none()
        {
            self.body(&item.sig.ident.to_string(), &item.sig.output, block);
            visit::visit_block(self, block);
        }
    }

    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}
    fn visit_type(&mut self, _: &'ast Type) {}
    fn visit_pat(&mut self, _: &'ast Pat) {}
    fn visit_expr_repeat(&mut self, repeat: &'ast syn::ExprRepeat) {
        self.visit_expr(&repeat.expr);
    }
    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}

    fn visit_expr_if(&mut self, expr: &'ast syn::ExprIf) {
        let statements = &expr.then_branch.stmts;
        if expr.else_branch.is_none() && statements.iter().all(|s| is_unchecked(&tokens(s))) {
            return;
        }
        if is_named_mutant(&expr.cond) {
            // The part that a build without named mutants contains.
            if matches!(&*expr.cond, Expr::Unary(_)) {
                self.visit_block(&expr.then_branch);
            }
        } else {
            self.condition(&expr.cond, true);
            self.visit_expr(&expr.cond);
            self.visit_block(&expr.then_branch);
        }
        if let Some((_, other)) = &expr.else_branch {
            self.visit_expr(other);
        }
    }

    fn visit_expr_while(&mut self, expr: &'ast syn::ExprWhile) {
        self.condition(&expr.cond, false);
        visit::visit_expr_while(self, expr);
    }

    fn visit_expr_match(&mut self, expr: &'ast syn::ExprMatch) {
        let is_bool = |arm: &syn::Arm| matches!(tokens(&arm.pat).as_str(), "true" | "false");
        if is_named_mutant(&expr.expr) {
            for arm in expr.arms.iter().filter(|arm| tokens(&arm.pat) == "false") {
                self.visit_expr(&arm.body);
            }
            return;
        }
        if expr.arms.iter().all(is_bool) {
            self.condition(&expr.expr, true);
        }
        self.visit_expr(&expr.expr);
        for arm in &expr.arms {
            if let Some((_, guard)) = &arm.guard {
                self.condition(guard, true);
                self.visit_expr(guard);
            }
            self.visit_expr(&arm.body);
        }
    }

    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        let named = is_named_mutant(&binary.left) || is_named_mutant(&binary.right);
        if named || has_let(&binary.left) || has_let(&binary.right) {
            return visit::visit_expr_binary(self, binary);
        }
        match binary.op {
            BinOp::Lt(_) => self.compare(binary, "<", &["<=", ">="]),
            BinOp::Le(_) => self.compare(binary, "<=", &["<", ">"]),
            BinOp::Gt(_) => self.compare(binary, ">", &[">=", "<="]),
            BinOp::Ge(_) => self.compare(binary, ">=", &[">", "<"]),
            BinOp::Eq(_) => self.compare(binary, "==", &["!="]),
            BinOp::Ne(_) => self.compare(binary, "!=", &["=="]),
            BinOp::And(_) => self.logic(binary, true),
            BinOp::Or(_) => self.logic(binary, false),
            BinOp::Add(_) | BinOp::Sub(_) => {
                let (both, what) = match binary.op {
                    BinOp::Add(_) => (["l + r", "l - r"], "+ → -"),
                    _ => (["l - r", "l + r"], "- → +"),
                };
                let end = self.range(binary.right.span()).1;
                self.calculate(binary.span(), &binary.left, &binary.right, end, both, what);
            }
            _ => {}
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        let name = call.method.to_string();
        if (name == "min" || name == "max") && call.args.len() == 1 {
            let end = self.range(call.span()).1;
            let (both, what) = match &name[..] {
                "min" => (["l.min(r)", "l.max(r)"], "min → max"),
                _ => (["l.max(r)", "l.min(r)"], "max → min"),
            };
            self.calculate(call.span(), &call.receiver, &call.args[0], end, both, what);
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_unary(&mut self, unary: &'ast syn::ExprUnary) {
        if let syn::UnOp::Not(not) = unary.op
            && !is_named_mutant(&unary.expr)
        {
            let text = self.short(unary.span());
            if let Some(id) = self.place(unary.span(), &[format!("{text}: without !")]) {
                let (begin, _) = self.range(not.span());
                self.edit(id, begin, 1, true, "(match (".to_owned());
                let end = self.range(unary.expr.span()).1;
                let body = format!(") {{ v => braid_rt::mutation::pick({id}, !v, v) }})");
                self.close(id, end, body);
            }
        }
        visit::visit_expr_unary(self, unary);
    }

    fn visit_stmt(&mut self, stmt: &'ast Stmt) {
        if let Stmt::Expr(expr, Some(_)) = stmt {
            let called = match expr {
                Expr::Try(tried) => &tried.expr,
                other => other,
            };
            match called {
                Expr::Call(_) | Expr::MethodCall(_) => self.delete(stmt.span(), "without"),
                Expr::Assign(_) | Expr::Return(_) | Expr::Continue(_) => {
                    self.delete(stmt.span(), "without");
                }
                Expr::Binary(binary)
                    if matches!(binary.op, BinOp::AddAssign(_) | BinOp::SubAssign(_)) =>
                {
                    self.delete(stmt.span(), "without");
                }
                _ => {}
            }
        }
        if let Stmt::Local(local) = stmt
            && matches!(local.pat, Pat::Wild(_))
        {
            self.delete(stmt.span(), "without");
        }
        // Attributes of statements are for lints and loom.
        visit::visit_stmt(self, stmt);
    }

    fn visit_local_init(&mut self, init: &'ast syn::LocalInit) {
        self.visit_expr(&init.expr);
        // The last statement must leave.
        if let Some((_, other)) = &init.diverge
            && let Expr::Block(block) = &**other
            && let Some((_, before)) = block.block.stmts.split_last()
        {
            before.iter().for_each(|stmt| self.visit_stmt(stmt));
        }
    }

    fn visit_macro(&mut self, _: &'ast syn::Macro) {}
}
