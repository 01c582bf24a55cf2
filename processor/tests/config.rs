//! Configuration files: those of published models, and what is refused.

use thalweg::Size;
use thalweg_processor::{HALF, IMAGENET, InputFormat, ProcessorParams, ResampleFilter};

/// The settings that most files have.
const COMMON: &str = r#""do_convert_rgb": true, "do_normalize": true, "do_rescale": true, "do_resize": true,
    "rescale_factor": 0.00392156862745098, "input_data_format": null, "return_tensors": null"#;

fn read(json: &str) -> ProcessorParams {
    ProcessorParams::from_config(&json.replace("COMMON", COMMON)).unwrap()
}

#[test]
fn files_of_models() {
    let qwen = read(
        r#"{"min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2,
        "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711],
        "image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2_5_VLProcessor"}"#,
    );
    assert_eq!(qwen, ProcessorParams::qwen2_vl());
    let qwen3 = read(
        r#"{"size": {"longest_edge": 16777216, "shortest_edge": 65536}, "patch_size": 16, "temporal_patch_size": 2,
        "merge_size": 2, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
        "processor_class": "Qwen3VLProcessor", "image_processor_type": "Qwen2VLImageProcessorFast"}"#,
    );
    assert_eq!(qwen3, ProcessorParams::qwen3_vl());
    let without = read(r#"{"image_processor_type": "Qwen2VLImageProcessor"}"#);
    let format = InputFormat::Qwen { patch: 14, merge: 2, min_pixels: 3136, max_pixels: 1_003_520 };
    assert_eq!(without, ProcessorParams::qwen2_vl().with_format(format));
    let naflex = read(
        r#"{COMMON, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "max_num_patches": 1024,
        "patch_size": 16, "resample": 2, "image_processor_type": "Siglip2ImageProcessor"}"#,
    );
    assert_eq!(naflex, ProcessorParams::siglip2_naflex(1024));
    let internvl = r#"{COMMON, "crop_size": null, "crop_to_patches": false, "data_format": "channels_first",
        "max_patches": 12, "min_patches": 1, "resample": 3, "size": {"height": 448, "width": 448}, "device": null,
        "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225], "do_center_crop": null,
        "image_processor_type": "GotOcr2ImageProcessorFast", "processor_class": "InternVLProcessor"}"#;
    assert_eq!(read(internvl), ProcessorParams::internvl());
    let alone = read(&internvl.replace("InternVLProcessor", "GotOcr2Processor"));
    assert_eq!(alone.format, InputFormat::Square { size: 448 });
    let llava = read(
        r#"{COMMON, "do_pad": true, "image_grid_pinpoints": [[384, 384], [384, 768], [768, 384]], "resample": 3,
        "size": {"height": 384, "width": 384}, "image_processor_type": "LlavaOnevisionImageProcessor"}"#,
    );
    let canvases = [[384, 384], [384, 768], [768, 384]].map(Size::from).to_vec();
    assert_eq!(llava, ProcessorParams::llava_onevision().with_format(InputFormat::AnyRes { tile: 384, canvases }));
    for [size, crop] in [["224", "224"], [r#"{"shortest_edge": 224}"#, r#"{"height": 224, "width": 224}"#]] {
        let clip = r#"{COMMON, "crop_size": CROP, "do_center_crop": true, "feature_extractor_type": "CLIPFeatureExtractor",
            "image_processor_type": "CLIPImageProcessor", "resample": 3, "size": SIZE}"#;
        assert_eq!(read(&clip.replace("CROP", crop).replace("SIZE", size)), ProcessorParams::clip(224));
    }
    let siglip = r#"{COMMON, "image_processor_type": "SiglipImageProcessor", "size": {"height": 384, "width": 384}}"#;
    assert_eq!(read(siglip), ProcessorParams::siglip(384));
    let other = siglip.replace("\"size\"", "\"resample\": 1, \"image_mean\": [0.485, 0.456, 0.406], \"size\"");
    let other = read(&other);
    assert_eq!((other.filter, other.statistics), (ResampleFilter::Lanczos, [IMAGENET[0], HALF[1]]));
}

#[test]
fn the_file_of_a_whole_processor() {
    let inner = r#"{"image_processor": {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 16},
        "processor_class": "Qwen3VLProcessor", "video_processor": {"fps": 2}}"#;
    assert!(matches!(read(inner).format, InputFormat::Qwen { patch: 16, .. }));
}

#[test]
fn what_may_change_numbers_is_refused() {
    let field = |field: &str| {
        let json = format!(r#"{{"image_processor_type": "SiglipImageProcessor", {field}}}"#);
        ProcessorParams::from_config(&json).unwrap_err().to_string()
    };
    for (given, message) in [
        (r#""do_resize": false"#, "the configuration's `do_resize` is false: expected true"),
        (r#""do_normalize": false"#, "`do_normalize` is false"),
        (r#""rescale_factor": 0.5"#, "`rescale_factor` is 0.5"),
        (r#""resample": 0"#, "`resample` is 0: expected 1 to 5"),
        (r#""resample": "bicubic""#, "`resample`"),
        (r#""sharpen": true"#, "`sharpen` is true: a field that is not known"),
        (r#""size": {"height": 3, "width": 4}"#, "`size` is 3 x 4: expected height and width that are equal"),
        (r#""size": {"height": 3, "width": 3, "depth": 3}"#, "`depth` is 3"),
        (r#""size": -1"#, "`size` is -1: expected a whole number"),
        (r#""image_mean": [0.5, 0.5]"#, "`image_mean` is [0.5,0.5]: expected three numbers"),
    ] {
        assert!(field(given).contains(message), "{given}: {}", field(given));
    }
    for (json, message) in [
        ("nonsense", "no JSON"),
        ("[1]", "no object"),
        ("{}", "`image_processor_type` is null"),
        (
            r#"{"image_processor_type": "DonutImageProcessor"}"#,
            "\"DonutImageProcessor\": expected the image processor of",
        ),
        (
            r#"{"image_processor_type": "Qwen2VLImageProcessor", "temporal_patch_size": 3}"#,
            "`temporal_patch_size` is 3",
        ),
    ] {
        let error = ProcessorParams::from_config(json).unwrap_err().to_string();
        assert!(error.contains(message), "{json}: {error}");
    }
}
