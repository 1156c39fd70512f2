"""Small models with the inputs of real ones: what a checkpoint takes (token ids, masks, lengths, boxes), and how it is
used. By name; each is (opset, text of onnx.parser)."""

from __future__ import annotations

import onnx
from onnx import parser

MODELS: dict[str, tuple[int, str]] = {
    # Token ids, token types and positions into tables of different heights; the mask becomes a bias of attention.
    "bert": (
        13,
        """g(int64[batch, seq] input_ids, int64[batch, seq] attention_mask, int64[batch, seq] token_type_ids)
            => (float[batch, seq, 4] hidden) <float[60, 4] words = {W240}, float[2, 4] kinds = {W8}, float[32, 4]
                places = {W128}> {
            zero = Constant<value = int64 {0}>() one = Constant<value = int64 {1}>() first = Constant<value = int64[1]
                {0}>()
            second = Constant<value = int64[1] {1}>() unit = Constant<value = float {1}>() low = Constant<value =
                float {-10000}>()
            e = Gather(words, input_ids) t = Gather(kinds, token_type_ids)
            s = Shape(input_ids) n = Gather<axis = 0>(s, one) r = Range(zero, n, one) p = Gather(places, r)
            a = Add(e, t) x = Add(a, p)
            m = Cast<to = 1>(attention_mask) i = Sub(unit, m) b = Mul(i, low) c = Unsqueeze(b, second)
            k = Transpose<perm = [0, 2, 1]>(x) q = MatMul(x, k) w = Add(q, c) o = Softmax<axis = 2>(w) hidden =
                MatMul(o, x) }""",
    ),
    # RoBERTa and OPT: positions are a running sum of the mask, shifted behind the padding index.
    "positions_by_cumsum": (
        13,
        """g(int64[B, T] input_ids, int64[B, T] attention_mask) => (float[B, T, 4] y)
            <float[50, 4] words = {W200}, float[40, 4] places = {W160}> {
            axis = Constant<value = int32 {1}>() one = Constant<value = int64 {1}>()
            m = Cast<to = 6>(attention_mask) c = CumSum(m, axis) d = Mul(c, m) l = Cast<to = 7>(d) p = Add(l, one)
            e = Gather(words, input_ids) f = Gather(places, p) y = Add(e, f) }""",
    ),
    # RoBERTa: the mask comes from the ids themselves.
    "positions_from_padding": (
        13,
        """g(int64[B, T] input_ids) => (float[B, T, 4] y) <float[50, 4] words = {W200}, float[40, 4] places = {W160}>
                {
            pad = Constant<value = int64 {1}>() axis = Constant<value = int32 {1}>() one = Constant<value = int64
                {1}>()
            same = Equal(input_ids, pad) other = Not(same) m = Cast<to = 6>(other) c = CumSum(m, axis) d = Mul(c, m)
            l = Cast<to = 7>(d) p = Add(l, one) e = Gather(words, input_ids) f = Gather(places, p) y = Add(e, f) }""",
    ),
    # Speech: frames beyond the length are set to zero.
    "lengths_mask": (
        13,
        """g(float[B, T, 5] features, int64[B] feature_lengths) => (float[B, T, 5] y, int64[B] frames) {
            zero = Constant<value = int64 {0}>() one = Constant<value = int64 {1}>() last = Constant<value = int64[1]
                {-1}>()
            two = Constant<value = int64 {2}>() nothing = Constant<value = float {0}>() outer = Constant<value =
                int64[1] {1}>()
            s = Shape(features) n = Gather<axis = 0>(s, one) r = Range(zero, n, one) l = Unsqueeze(feature_lengths,
                outer)
            m = Less(r, l) k = Unsqueeze(m, last) y = Where(k, features, nothing) frames = Div(feature_lengths, two)
                }""",
    ),
    # The length decides how much is kept.
    "cut_at_the_longest": (
        13,
        """g(float[B, T, 5] features, int64[B] lengths) => (float[B, L, 5] y) {
            zero = Constant<value = int64[1] {0}>() axis = Constant<value = int64[1] {1}>()
            top = ReduceMax<axes = [0], keepdims = 1>(lengths) y = Slice(features, zero, top, axis) }""",
    ),
    "lstm_lengths": (
        13,
        """g(float[T, B, 3] x, int32[B] lengths) => (float[T, 1, B, 2] y) <float[1, 8, 3] w = {W24}, float[1, 8, 2] r
                = {W16}> {
            y = LSTM<hidden_size = 2>(x, w, r, "", lengths) }""",
    ),
    "roi_align": (
        16,
        """g(float[B, 3, H, W] features, float[N, 4] boxes, int64[N] batch_indices) => (float[N, 3, 2, 2] y) {
            y = RoiAlign<output_height = 2, output_width = 2, spatial_scale = 0.5>(features, boxes, batch_indices)
                }""",
    ),
    # CenterNet: scores are read at the flat places of the boxes' centres.
    "gather_at_centres": (
        13,
        """g(float[B, 4, H, W] heat, int64[B, K] box_index) => (float[B, K, 4] y) {
            flat = Constant<value = int64[3] {0, 4, -1}>() last = Constant<value = int64[1] {2}>()
            f = Reshape(heat, flat) t = Transpose<perm = [0, 2, 1]>(f) i = Unsqueeze(box_index, last)
            four = Constant<value = int64[3] {1, 1, 4}>() e = Expand(i, four) y = GatherElements<axis = 1>(t, e) }""",
    ),
    "gather_nd_pairs": (
        13,
        """g(float[R, C] table, int64[K, 2] pairs) => (float[K] y) { y = GatherND(table, pairs) }""",
    ),
    # GPT with a cache: keys of the past are put before the new ones; the mask covers both.
    "decoder_with_past": (
        13,
        """g(int64[B, S] input_ids, int64[B, S] position_ids, float[B, P, 4] past_key_values)
            => (float[B, S, 4] y, float[B, Q, 4] present) <float[50, 4] words = {W200}, float[64, 4] places = {W256}>
                {
            e = Gather(words, input_ids) p = Gather(places, position_ids) x = Add(e, p)
            present = Concat<axis = 1>(past_key_values, x) k = Transpose<perm = [0, 2, 1]>(present) q = MatMul(x, k)
            a = Softmax<axis = 2>(q) y = MatMul(a, present) }""",
    ),
    "one_hot_classes": (
        13,
        """g(int64[N] class_ids) => (float[N, 7] y) { depth = Constant<value = int64 {7}>()
            values = Constant<value = float[2] {0, 1}>() y = OneHot(class_ids, depth, values) }""",
    ),
    "one_hot_by_comparison": (
        13,
        """g(int64[N] speaker_id, float[9, 4] table) => (float[N, 4] y) { zero = Constant<value = int64 {0}>()
            one = Constant<value = int64 {1}>() nine = Constant<value = int64 {9}>() last = Constant<value = int64[1]
                {1}>()
            r = Range(zero, nine, one) i = Unsqueeze(speaker_id, last) e = Equal(i, r) f = Cast<to = 1>(e)
            y = MatMul(f, table) }""",
    ),
    "top_k": (
        13,
        """g(float[N, 6] scores, int64[1] k) => (float[N, K] best, int64[N, K] at) { best, at = TopK(scores, k) }""",
    ),
    "slice_by_bounds": (
        13,
        """g(float[N, 8] x, int64[1] start, int64[1] end) => (float[N, K] y) { axis = Constant<value = int64[1] {1}>()
            y = Slice(x, start, end, axis) }""",
    ),
    "resize_to_size": (
        13,
        """g(float[B, 3, H, W] image, int64[2] size) => (float[B, 3, U, V] y) { s = Shape(image)
            zero = Constant<value = int64[1] {0}>() two = Constant<value = int64[1] {2}>() f = Slice(s, zero, two)
            t = Concat<axis = 0>(f, size) y = Resize<mode = "nearest">(image, "", "", t) }""",
    ),
    "non_max_suppression": (
        13,
        """g(float[B, N, 4] boxes, float[B, C, N] scores, int64[1] max_output_boxes_per_class, float[1] iou_threshold)
            => (int64[M, 3] y) { y = NonMaxSuppression(boxes, scores, max_output_boxes_per_class, iou_threshold) }""",
    ),
    "scatter_ids": (
        16,
        """g(float[N, 4] nodes, int64[2, E] edge_index) => (float[N, 4] y) { zero = Constant<value = int64 {0}>()
            one = Constant<value = int64 {1}>() last = Constant<value = int64[1] {1}>()
            source = Gather<axis = 0>(edge_index, zero) target = Gather<axis = 0>(edge_index, one)
            m = Gather(nodes, source) t = Unsqueeze(target, last) s = Shape(m) i = Expand(t, s)
            o = Sub(nodes, nodes) y = ScatterElements<axis = 0, reduction = "add">(o, i, m) }""",
    ),
    # The last token that is not padding: the sum of the mask, less one.
    "last_token": (
        13,
        """g(float[B, T, 4] hidden, int64[B, T] attention_mask) => (float[B, 4] y) { one = Constant<value = int64
                {1}>()
            axes = Constant<value = int64[1] {1}>() last = Constant<value = int64[1] {1}>()
            n = ReduceSum<keepdims = 0>(attention_mask, axes) k = Sub(n, one) i = Unsqueeze(k, last)
            y = GatherND<batch_dims = 1>(hidden, i) }""",
    ),
    # A causal mask of two lengths, cut out of a square table.
    "causal_mask": (
        13,
        """g(float[B, Q, K] scores, int64 past_length) => (float[B, Q, K] y) <bool[64, 64] seen = {B4096}> {
            zero = Constant<value = int64[1] {0}>() one = Constant<value = int64 {1}>() low = Constant<value = float
                {-1000}>()
            flat = Constant<value = int64[1] {-1}>() axis0 = Constant<value = int64[1] {0}>() axis1 = Constant<value =
                int64[1] {1}>()
            two = Constant<value = int64 {2}>() s = Shape(scores) q = Gather<axis = 0>(s, one) k = Gather<axis = 0>(s,
                two)
            start = Reshape(past_length, flat) l = Reshape(q, flat) end = Add(start, l) w = Reshape(k, flat)
            rows = Slice(seen, start, end, axis0) cut = Slice(rows, zero, w, axis1) y = Where(cut, scores, low) }""",
    ),
    # FastSpeech: every phoneme is repeated as often as its duration says, up to the longest output.
    "durations": (
        13,
        """g(float[T, 4] x, int64[T] durations) => (float[L, 4] y) { axis = Constant<value = int32 {0}>()
            zero = Constant<value = int64 {0}>() one = Constant<value = int64 {1}>() outer = Constant<value = int64[1]
                {1}>()
            c = CumSum(durations, axis) n = ReduceMax<keepdims = 0>(c) r = Range(zero, n, one) a = Unsqueeze(r, outer)
            later = Less(a, c) not = Not(later) f = Cast<to = 7>(not) i = ReduceSum<keepdims = 0>(f, outer) y =
                Gather(x, i) }""",
    ),
    # Masks of bools, ids of another dtype, an id for the whole model.
    "vits": (
        15,
        """g(int64[B, T] input, int64[B] input_lengths, float[3] scales, int64[B] sid) => (float[B, T, 4] y)
            <float[30, 4] phones = {W120}, float[5, 4] speakers = {W20}> { zero = Constant<value = int64 {0}>()
            one = Constant<value = int64 {1}>() outer = Constant<value = int64[1] {1}>() last = Constant<value =
                int64[1] {2}>()
            e = Gather(phones, input) s = Gather(speakers, sid) w = Unsqueeze(s, outer) x = Add(e, w) d = Shape(input)
            n = Gather<axis = 0>(d, one) r = Range(zero, n, one) l = Unsqueeze(input_lengths, outer) m = Less(r, l)
            f = Cast<to = 1>(m) g = Unsqueeze(f, last) h = Mul(x, g) k = Gather<axis = 0>(scales, zero) y = Mul(h, k)
                }""",
    ),
}


def build(name: str) -> onnx.ModelProto:
    """The model of this name, with weights that are no matter."""
    opset, text = MODELS[name]
    for key in {part[: part.index("}")] for part in text.split("= {")[1:] if part[0] in "WB"}:
        count = int(key[1:])
        numbers = (str(n * 7 % 5 - 2) if key[0] == "W" else str(n % 3 % 2) for n in range(count))
        text = text.replace("{" + key + "}", "{" + ", ".join(numbers) + "}")
    return parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}')
