//! Tests of the number formats: against values that another implementation decoded, and round trips.

use super::*;

/// Blocks of random bytes and the bits of the weights that another implementation decoded them to.
const DEQUANTISED: &str = include_str!("../../../integration-tests/data/quant/dequantised.json");

#[derive(serde::Deserialize)]
struct Golden {
    r#type: String,
    bytes: String,
    weight_bits: Vec<u32>,
}

/// Pseudo-random weights in about [-1, 1].
fn weights(count: usize) -> Vec<f32> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next() * next().abs()).collect()
}

/// Encodes and decodes, and holds the root mean square error, relative to that of the weights, to `bound`.
fn check(tensor_type: TensorType, bound: f32) {
    let original = weights(1024);
    let mut bytes = vec![0xa5; tensor_type.bytes(original.len()).unwrap()];
    quantize(tensor_type, &original, &mut bytes);
    let mut decoded = vec![f32::NAN; original.len()];
    dequantize(tensor_type, &bytes, &mut decoded);
    let square = |values: &mut dyn Iterator<Item = f32>| values.map(|value| value * value).sum::<f32>();
    let error = square(&mut original.iter().zip(&decoded).map(|(left, right)| left - right));
    let relative = (error / square(&mut original.iter().copied())).sqrt();
    assert!(relative <= bound, "{tensor_type}: relative error {relative} above {bound}");
}

#[test]
fn the_table_is_in_the_order_of_the_enum_and_numbers_are_unique() {
    for (index, format) in FORMATS.iter().enumerate() {
        assert_eq!(format.tensor_type as usize, index, "{}", format.name);
        assert_eq!(TensorType::from_number(format.number), Ok(format.tensor_type));
        assert_eq!(TensorType::from_name(format.name), Some(format.tensor_type));
    }
}

#[test]
fn decoded_weights_equal_another_implementation_bit_for_bit() {
    let goldens: Vec<Golden> = serde_json::from_str(DEQUANTISED).unwrap();
    assert_eq!(goldens.len(), FORMATS.len() - 3, "every quantised type is covered");
    for golden in goldens {
        let tensor_type = TensorType::from_name(&golden.r#type).unwrap();
        let bytes: Vec<u8> = (0..golden.bytes.len() / 2)
            .map(|byte| u8::from_str_radix(&golden.bytes[2 * byte..2 * byte + 2], 16).unwrap())
            .collect();
        let mut decoded = vec![0.0; golden.weight_bits.len()];
        dequantize(tensor_type, &bytes, &mut decoded);
        for (weight, (decoded, expected)) in decoded.iter().zip(&golden.weight_bits).enumerate() {
            let expected = f32::from_bits(*expected);
            // Adding a minimum of zero turns -0 into 0; nothing else may differ.
            assert!(
                decoded.to_bits() == expected.to_bits() || (*decoded == 0.0 && expected == 0.0),
                "{tensor_type} weight {weight}: {decoded:e}, expected {expected:e}"
            );
        }
    }
}

#[test]
fn the_decomposition_written_out_is_the_decoded_weights() {
    for tensor_type in TensorType::all().filter(|tensor_type| tensor_type.is_quantised()) {
        let original = weights(512);
        let mut bytes = vec![0; tensor_type.bytes(original.len()).unwrap()];
        quantize(tensor_type, &original, &mut bytes);
        let mut decoded = vec![0.0; original.len()];
        dequantize(tensor_type, &bytes, &mut decoded);
        let mut parts = [Decomposed::ZERO; 16];
        decompose(tensor_type, &bytes, &mut parts);
        for (weight, decoded) in decoded.iter().enumerate() {
            let (part, half) = (&parts[weight / 32], weight % 32 / 16);
            let product = part.scale[half] * f32::from(part.codes[weight % 32]);
            assert_eq!(*decoded, product + part.minimum[half], "{tensor_type} weight {weight}");
        }
    }
}

#[test]
fn encoding_and_decoding_stays_within_the_error_of_the_format() {
    check(TensorType::F32, 0.0);
    check(TensorType::F16, 1e-3);
    check(TensorType::BF16, 4e-3);
    check(TensorType::Q8_0, 0.01);
    check(TensorType::Q6_K, 0.05);
    for tensor_type in [TensorType::Q5_0, TensorType::Q5_1, TensorType::Q5_K] {
        check(tensor_type, 0.08);
    }
    for tensor_type in [TensorType::Q4_0, TensorType::Q4_1, TensorType::Q4_K] {
        check(tensor_type, 0.16);
    }
    for tensor_type in [TensorType::IQ4_NL, TensorType::IQ4_XS, TensorType::MXFP4] {
        check(tensor_type, 0.2);
    }
    check(TensorType::Q3_K, 0.25);
    check(TensorType::Q2_K, 0.5);
}

#[test]
fn all_zero_weights_stay_zero_in_every_type() {
    for tensor_type in TensorType::all() {
        let mut bytes = vec![0xff; tensor_type.bytes(256).unwrap()];
        quantize(tensor_type, &[0.0; 256], &mut bytes);
        let mut decoded = [1.0; 256];
        dequantize(tensor_type, &bytes, &mut decoded);
        assert_eq!(decoded, [0.0; 256], "{tensor_type}");
    }
}

#[test]
fn an_unsupported_type_is_named() {
    let error = TensorType::from_number(16).unwrap_err();
    assert_eq!(error.to_string(), "tensor type 16 (IQ2_XXS) is not supported");
    assert_eq!(
        TensorType::from_number(99).unwrap_err().to_string(),
        "tensor type 99 (unknown) is not supported"
    );
}
