//! Saved models whose parts contradict each other.

use std::fs;

use super::{MODEL, fails, place, run, said};

/// A safetensors file of these tensors: name, type, shape, bytes; and what it says of itself.
pub(crate) fn tensors(about: Option<&str>, tensors: &[(&str, &str, Vec<usize>, Vec<u8>)]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    if let Some(about) = about {
        header.insert("__metadata__".into(), serde_json::json!({ "fsx": about }));
    }
    let mut data = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        data.extend_from_slice(bytes);
        header.insert(
            (*name).to_owned(),
            serde_json::json!({ "dtype": dtype, "shape": shape, "data_offsets": offsets }),
        );
    }
    let header = serde_json::Value::Object(header).to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

/// Saved models whose parts contradict each other are refused, and take no more memory than they have bytes.
#[test]
fn saved_models_that_lie_are_refused() {
    const ITEMS: &str = "{\"items\":\"items\"}";
    let folder = place();
    let at = folder.path();
    let about = |version: u32, step: u64, vocabulary: &str| {
        format!(
            "{{\"version\":{version},\"program\":\"p\",\"model\":\"m\",\"schedule\":\"s\",\"seed\":1,\"step\":{step},\"vocabulary\":{vocabulary}}}"
        )
    };
    let reals = |n: usize, x: f32| x.to_le_bytes().repeat(n);
    let numbers = |n: &[i64]| n.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let table = || ("table.items", "F32", vec![100, 4], reals(400, 0.1));
    let ids = |offsets: &[i64], text: &[u8]| {
        vec![
            ("vocabulary/items/offsets", "I64", vec![offsets.len()], numbers(offsets)),
            ("vocabulary/items/text", "U8", vec![text.len()], text.to_vec()),
            table(),
        ]
    };
    let good = about(1, 3, ITEMS);
    let init = |bytes: &[u8]| {
        fs::write(at.join("w.safetensors"), bytes).expect("written");
        ["run", "m.json", "--init", "w.safetensors"]
    };
    let out = run(at, "fsx", &init(&tensors(Some(&good), &ids(&[0, 1, 2], b"bz"))));
    assert!(out.status.success() && said(&out).contains("rows of 1 ids, found by id"), "{}", said(&out));
    let many: Vec<i64> = (0..=101).collect();
    let long = [b'x'; 200];
    let float = ("vocabulary/items/offsets", "F32", vec![2], reals(2, 0.0));
    let others = about(1, 3, "{\"items\":\"a\",\"other\":\"b\"}");
    for (about, parts, says) in [
        (&good, ids(&[], b""), "damaged"),
        (&good, ids(&[0, 1, 3], b"bz"), "damaged: offset 2 is 3"),
        (&good, ids(&[0, 2, 1, 2], b"bz"), "damaged: offset 2 is 1"),
        (&good, ids(&[0, -9, 2], b"bz"), "damaged: offset 1 is -9"),
        (&good, ids(&[0, i64::MAX, 2], b"bz"), "damaged: offset 1 is 9223372036854775807"),
        (&good, ids(&[0, 1], b"bz"), "damaged: offset 1 is 1"),
        (&good, ids(&[0, 1, 2], b"zz"), "ids 0 and 1 are both `z`"),
        (&good, ids(&many, &long[..101]), "its vocabulary has 101 ids for 100 rows"),
        (&good, vec![table()], "has no tensor `vocabulary/items/offsets`"),
        (&good, vec![float, table()], "is F32 [2], expected I64"),
        (&about(3, 3, ITEMS), ids(&[0, 1], b"b"), "its format has version 3"),
        (&about(1, u64::MAX, ITEMS), ids(&[0, 1], b"b"), "was trained for 18446744073709551615 steps"),
        // The model does not take the other table, so its vocabulary counts for nothing.
        (&others, ids(&[0, 1], b"b"), "has no tensor `vocabulary/a/offsets`"),
        (&"{}".to_owned(), vec![table()], "what it says of itself cannot be read"),
        (&good, vec![("table.items", "F32", vec![100, 4], reals(400, f32::NAN))], "has no tensor `vocab"),
        (
            &about(1, 3, "{}"),
            vec![("table.items", "F32", vec![100, 4], reals(400, f32::NAN))],
            "not a finite",
        ),
        (&about(1, 3, "{}"), vec![("table.items", "F32", vec![4, 100], reals(400, 0.1))], "is F32 [4, 100]"),
        (&about(1, 3, "{}"), vec![("table.items", "I32", vec![100, 4], reals(400, 0.1))], "is I32 [100, 4]"),
        (&about(1, 3, "{}"), vec![("table.items/sum", "F32", vec![1], reals(1, 0.1))], "values for none"),
    ] {
        let said = fails(at, "fsx", &init(&tensors(Some(about), &parts)));
        assert!(said.contains(says), "{says}: {said}");
    }
    // One that takes both tables would need both vocabularies.
    let two = MODEL
        .replace("table items", "table other { rows 100  dim 4  optimizer sgd(lr: 0.1) }\n  table items")
        .replace(
            "let x = lookup(history)",
            "input again: ids(other) like history\n  let x = lookup(history) + lookup(again)",
        )
        .replace(
            "csv \"r.csv\" { user \"u\"  item \"i\"  time \"t\" }",
            "generate { lengths fixed(4)  ids zipf(1.05)  samples 4 }",
        );
    fs::write(at.join("two.fs"), two).expect("written");
    let out = run(at, "fsc", &["compile", "two.fs"]);
    assert!(out.status.success(), "{}", said(&out));
    let other = ("table.other", "F32", vec![100, 4], reals(400, 0.1));
    init(&tensors(Some(&others), &[&ids(&[0, 1], b"b")[..], &[other]].concat()));
    let said = fails(at, "fsx", &["run", "two.json", "--init", "w.safetensors"]);
    assert!(said.contains("its tables have several vocabularies, of which this program reads one"), "{said}");
    // Squares are not negative.
    let adagrad = MODEL.replace("sgd(lr: 0.1)", "rowwise_adagrad(lr: 0.1)");
    fs::write(at.join("a.fs"), adagrad).expect("written");
    assert!(run(at, "fsc", &["compile", "a.fs"]).status.success());
    let sums = ("table.items/row_sum", "F32", vec![100], reals(100, -1.0));
    init(&tensors(Some(&about(1, 3, "{}")), &[table(), sums]));
    let said = fails(at, "fsx", &["run", "a.json", "--init", "w.safetensors"]);
    assert!(said.contains("element 0 of `table.items/row_sum` is below 0"), "{said}");
    // A file with a hole in it says that it has more text than there is memory.
    let terabyte = 1u64 << 40;
    let header = format!(
        "{{\"__metadata__\":{{\"fsx\":{}}},\"table.items\":{{\"dtype\":\"F32\",\"shape\":[100,4],\"data_offsets\":[0,1600]}},\
         \"vocabulary/items/offsets\":{{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[1600,1616]}},\
         \"vocabulary/items/text\":{{\"dtype\":\"U8\",\"shape\":[{terabyte}],\"data_offsets\":[1616,{}]}}}}",
        serde_json::Value::from(good.clone()),
        terabyte + 1616
    );
    init(&[&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat());
    let file = fs::OpenOptions::new().write(true).open(at.join("w.safetensors")).expect("opened");
    if file.set_len(8 + header.len() as u64 + 1616 + terabyte).is_ok() {
        let said = fails(at, "fsx", &["run", "m.json", "--init", "w.safetensors"]);
        assert!(said.contains("its vocabulary takes"), "{said}");
    }
}
