// The texture array in CUDA C++, for comparison: as one writes it first, and the algorithm of
// kernels-gpu/src/textures.rs line by line. The roofline benchmark compiles this with `nvcc -O3 -cubin`, checks what the
// kernels write, and times them on its own buffers.
//
// rgb [H, W, 3] u8 to planes [13, H, W] f32:
// R, G, B, L, a, b, Gx, Gy, |G|, y, x, eccentricity, local contrast (docs/spec.md, section 1).

typedef unsigned int u32;
typedef unsigned char u8;

// ---------------------------------------------------------------- a thread a pixel, blocks of 32 x 8

__device__ float to_linear(float c) { return c <= 0.04045f ? c / 12.92f : powf((c + 0.055f) / 1.055f, 2.4f); }

__device__ float lab_f(float t) { return t > 0.008856f ? cbrtf(t) : 7.787f * t + 16.0f / 116.0f; }

extern "C" __global__ void textures_plain(u32 height, u32 width, float fixation_y, float fixation_x,
                                          const u8* __restrict__ rgb, float* __restrict__ planes)
{
    u32 x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;

    int luma[3][3], sum = 0; // times 255000
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) {
            u32 row = min(max((int)y + i - 1, 0), (int)height - 1), column = min(max((int)x + j - 1, 0), (int)width - 1);
            const u8* p = rgb + 3 * (row * width + column);
            luma[i][j] = 299 * p[0] + 587 * p[1] + 114 * p[2];
            sum += luma[i][j];
        }
    float mean = sum / 9.0f, squares = 0;
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) squares += (luma[i][j] - mean) * (luma[i][j] - mean);
    float gx = (luma[0][2] + 2 * luma[1][2] + luma[2][2] - luma[0][0] - 2 * luma[1][0] - luma[2][0]) / (8 * 255000.0f);
    float gy = (luma[2][0] + 2 * luma[2][1] + luma[2][2] - luma[0][0] - 2 * luma[0][1] - luma[0][2]) / (8 * 255000.0f);

    const u8* p = rgb + 3 * (y * width + x);
    float r = p[0] / 255.0f, g = p[1] / 255.0f, b = p[2] / 255.0f;
    float lr = to_linear(r), lg = to_linear(g), lb = to_linear(b);
    float fx = lab_f((0.412453f * lr + 0.357580f * lg + 0.180423f * lb) / 0.95047f);
    float fy = lab_f(0.212671f * lr + 0.715160f * lg + 0.072169f * lb);
    float fz = lab_f((0.019334f * lr + 0.119193f * lg + 0.950227f * lb) / 1.08883f);

    float v = y / (float)(max(height, 2u) - 1), u = x / (float)(max(width, 2u) - 1);
    float far = hypotf(fmaxf(fixation_y, 1 - fixation_y), fmaxf(fixation_x, 1 - fixation_x));

    size_t n = (size_t)height * width;
    float* out = planes + (size_t)y * width + x;
    out[0 * n] = r;
    out[1 * n] = g;
    out[2 * n] = b;
    out[3 * n] = (116 * fy - 16) / 100;
    out[4 * n] = (500 * (fx - fy) + 128) / 255;
    out[5 * n] = (200 * (fy - fz) + 128) / 255;
    out[6 * n] = gx;
    out[7 * n] = gy;
    out[8 * n] = sqrtf(gx * gx + gy * gy);
    out[9 * n] = v;
    out[10 * n] = u;
    out[11 * n] = hypotf(v - fixation_y, u - fixation_x) / far;
    out[12 * n] = 2 * sqrtf(squares / 9) / 255000;
}

// ---------------------------------------------------------------- the same algorithm: 4 pixels of 2 rows a thread
// The image's width is a multiple of 4 and its first byte on a word; the planes start on 16 bytes. Blocks of 256 x 1.

__device__ __forceinline__ float sqrt_approx(float x)
{
    float y;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float recip(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float cube_root(float x)
{
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(y * (1.0f / 3.0f)));
    return y;
}

// v * s for v below 2^23, rounded once.
__device__ __forceinline__ float scale(u32 v, float s) { return fmaf(__uint_as_float(v | 0x4b000000u), s, -8388608.0f * s); }

// Luma times 255000 of the low three bytes.
__device__ __forceinline__ float luma_of(u32 pixel)
{
    u32 low = __dp2a_lo(299u | 587u << 16, pixel, 0x4b000000u);
    return __uint_as_float(__dp2a_hi(114u, pixel, low)) - 8388608.0f;
}

// Three lumas, one above the other.
struct Column { float sum, smooth, slope, spread; };

// Linear light of each sRGB byte.
__device__ const float LINEAR[256] = {
    0.0f, 0.000303527f, 0.000607054f, 0.000910581f, 0.001214108f, 0.001517635f, 0.001821162f, 0.0021246888f,
    0.002428216f, 0.0027317428f, 0.00303527f, 0.0033465358f, 0.0036765074f, 0.004024717f, 0.004391442f, 0.0047769533f,
    0.0051815165f, 0.0056053917f, 0.006048833f, 0.0065120906f, 0.00699541f, 0.007499032f, 0.008023193f, 0.008568126f,
    0.009134059f, 0.009721218f, 0.010329823f, 0.010960094f, 0.011612245f, 0.012286488f, 0.0129830325f, 0.013702083f,
    0.014443844f, 0.015208514f, 0.015996294f, 0.016807375f, 0.017641954f, 0.01850022f, 0.019382361f, 0.020288562f,
    0.02121901f, 0.022173885f, 0.023153367f, 0.024157632f, 0.02518686f, 0.026241222f, 0.027320892f, 0.02842604f,
    0.029556835f, 0.030713445f, 0.031896032f, 0.033104766f, 0.034339808f, 0.035601314f, 0.03688945f, 0.038204372f,
    0.039546236f, 0.0409152f, 0.04231141f, 0.04373503f, 0.045186203f, 0.046665087f, 0.048171826f, 0.049706567f,
    0.051269457f, 0.052860647f, 0.054480277f, 0.05612849f, 0.05780543f, 0.059511237f, 0.061246052f, 0.063010015f,
    0.064803265f, 0.06662594f, 0.06847817f, 0.070360094f, 0.07227185f, 0.07421357f, 0.07618538f, 0.07818742f,
    0.08021982f, 0.08228271f, 0.08437621f, 0.08650046f, 0.08865558f, 0.09084171f, 0.093058966f, 0.09530747f,
    0.09758735f, 0.099898726f, 0.10224173f, 0.104616486f, 0.107023105f, 0.10946171f, 0.11193243f, 0.114435375f,
    0.116970666f, 0.11953843f, 0.122138776f, 0.12477182f, 0.12743768f, 0.13013647f, 0.13286832f, 0.13563333f,
    0.13843161f, 0.14126329f, 0.14412847f, 0.14702727f, 0.14995979f, 0.15292615f, 0.15592647f, 0.15896083f,
    0.16202937f, 0.1651322f, 0.1682694f, 0.17144111f, 0.1746474f, 0.17788842f, 0.18116425f, 0.18447499f,
    0.18782078f, 0.19120169f, 0.19461784f, 0.19806932f, 0.20155625f, 0.20507874f, 0.20863687f, 0.21223076f,
    0.2158605f, 0.2195262f, 0.22322796f, 0.22696587f, 0.23074006f, 0.23455058f, 0.23839757f, 0.24228112f,
    0.24620132f, 0.25015828f, 0.2541521f, 0.25818285f, 0.26225066f, 0.2663556f, 0.2704978f, 0.2746773f,
    0.27889428f, 0.28314874f, 0.28744084f, 0.29177064f, 0.29613826f, 0.30054379f, 0.3049873f, 0.30946892f,
    0.31398872f, 0.31854677f, 0.3231432f, 0.3277781f, 0.33245152f, 0.33716363f, 0.34191442f, 0.34670407f,
    0.3515326f, 0.35640013f, 0.3613068f, 0.3662526f, 0.3712377f, 0.37626213f, 0.38132602f, 0.38642943f,
    0.39157248f, 0.39675522f, 0.40197778f, 0.4072402f, 0.4125426f, 0.41788507f, 0.42326766f, 0.4286905f,
    0.43415365f, 0.43965718f, 0.4452012f, 0.4507858f, 0.45641103f, 0.462077f, 0.4677838f, 0.47353148f,
    0.47932017f, 0.48514995f, 0.49102086f, 0.49693298f, 0.5028865f, 0.50888133f, 0.5149177f, 0.52099556f,
    0.5271151f, 0.5332764f, 0.5394795f, 0.54572445f, 0.55201143f, 0.5583404f, 0.5647115f, 0.57112485f,
    0.57758045f, 0.58407843f, 0.59061885f, 0.59720176f, 0.60382736f, 0.61049557f, 0.6172066f, 0.6239604f,
    0.63075715f, 0.63759685f, 0.6444797f, 0.65140563f, 0.65837485f, 0.6653873f, 0.67244315f, 0.6795425f,
    0.6866853f, 0.69387174f, 0.7011019f, 0.70837575f, 0.7156935f, 0.7230551f, 0.73046076f, 0.7379104f,
    0.7454042f, 0.7529422f, 0.7605245f, 0.76815116f, 0.7758222f, 0.7835378f, 0.7912979f, 0.7991027f,
    0.80695224f, 0.8148466f, 0.82278574f, 0.8307699f, 0.838799f, 0.8468732f, 0.8549926f, 0.8631572f,
    0.8713671f, 0.8796224f, 0.8879231f, 0.8962694f, 0.9046612f, 0.91309863f, 0.92158186f, 0.9301109f,
    0.9386857f, 0.9473065f, 0.9559733f, 0.9646863f, 0.9734453f, 0.9822506f, 0.9911021f, 1.0f,
};

// Pixels x - 1 to x + 4 of the row that starts at byte `start`, the border replicated.
__device__ __forceinline__ void load(const u8* __restrict__ rgb, u32 width, u32 start, u32 x, u32 (&row)[6])
{
    const u32* p = (const u32*)(rgb + 3 * (size_t)x + start);
    u32 p0 = p[0], p1 = p[1], p2 = p[2];
    u32 left = x > 0 ? p[-1] : p0 << 8, right = x + 4 < width ? p[3] : p2 >> 8;
    row[0] = left >> 8;
    row[1] = p0;
    row[2] = p0 >> 24 | p1 << 8;
    row[3] = p1 >> 16 | p2 << 16;
    row[4] = p2 >> 8;
    row[5] = right;
}

__device__ __forceinline__ float response(float x, float y, float z, float r, float g, float b)
{
    float t = fmaf(x, r, fmaf(y, g, z * b)), lack = __saturatef(1.0f - t);
    return fmaf((float)(-7.787 * 0.008856 / 0.20689303442296383), lack, cube_root(t + lack));
}

extern "C" __global__ void textures_ported(u32 height, u32 width, float fixation_y, float fixation_x,
                                           const u8* __restrict__ rgb, float* __restrict__ planes)
{
    const double T0 = 0.008856, ROOT0 = 0.20689303442296383;
    const float GRADIENT = (float)(1.0 / (8.0 * 255000.0));
    const float CONTRAST = (float)(2.0 * 0.2721655269759087 / 255000.0);

    float scale_y = recip(scale(max(height, 2u) - 1, 1.0f)), scale_x = recip(scale(max(width, 2u) - 1, 1.0f));
    float far_y = fmaxf(fabsf(fixation_y), fabsf(1 - fixation_y)), far_x = fmaxf(fabsf(fixation_x), fabsf(1 - fixation_x));
    float nearness = recip(sqrt_approx(fmaf(far_y, far_y, far_x * far_x)));

    u32 x = blockIdx.x * 1024 + threadIdx.x * 4, top = blockIdx.y * 2;
    if (x >= width) return;
    float column_x[4], column_e[4];
    for (int i = 0; i < 4; i++) {
        column_x[i] = scale(x + i, scale_x);
        column_e[i] = (column_x[i] - fixation_x) * nearness;
    }

    u32 start = 3 * width * top, row[6], below[6];
    load(rgb, width, start, x, row);
    load(rgb, width, top > 0 ? start - 3 * width : start, x, below);
    // What is known of the columns when the next row comes: the last row, the sum of the last two, their difference.
    float last[6], pair[6], step[6];
    for (int i = 0; i < 6; i++) {
        float above = luma_of(below[i]);
        last[i] = luma_of(row[i]);
        pair[i] = last[i] + above;
        step[i] = last[i] - above;
    }
    for (u32 y = top; y < top + 2; y++) {
        if (y == height) return;
        start = y + 1 < height ? start + 3 * width : start;
        load(rgb, width, start, x, below);
        Column columns[6];
        for (int i = 0; i < 6; i++) {
            float c = luma_of(below[i]), next_pair = last[i] + c, next_step = c - last[i], slope = step[i] + next_step;
            columns[i] = {pair[i] + c, pair[i] + next_pair, slope, fmaf(step[i], slope, next_step * next_step)};
            last[i] = c;
            pair[i] = next_pair;
            step[i] = next_step;
        }
        auto put = [&](u32 plane, const float (&v)[4]) {
            float* p = planes + (plane * height * width + y * width + x);
            __stcs((float4*)p, make_float4(v[0], v[1], v[2], v[3]));
        };
        float v[4], w[4], z[4];
        for (int c = 0; c < 3; c++) {
            for (int i = 0; i < 4; i++) v[i] = scale(row[i + 1] >> 8 * c & 255, 1.0f / 255.0f);
            put(c, v);
        }
        for (int i = 0; i < 4; i++) {
            float r = LINEAR[row[i + 1] & 255], g = LINEAR[row[i + 1] >> 8 & 255], b = LINEAR[row[i + 1] >> 16 & 255];
            float fx = response(0.412453 / 0.95047 / T0, 0.357580 / 0.95047 / T0, 0.180423 / 0.95047 / T0, r, g, b);
            float fy = response(0.212671 / T0, 0.715160 / T0, 0.072169 / T0, r, g, b);
            float fz = response(0.019334 / 1.08883 / T0, 0.119193 / 1.08883 / T0, 0.950227 / 1.08883 / T0, r, g, b);
            v[i] = fmaf((float)(1.16 * ROOT0), fy, -0.16f);
            w[i] = fmaf((float)(500.0 * ROOT0 / 255.0), fx - fy, (float)(128.0 / 255.0));
            z[i] = fmaf((float)(200.0 * ROOT0 / 255.0), fy - fz, (float)(128.0 / 255.0));
        }
        put(3, v);
        put(4, w);
        put(5, z);
        for (int i = 0; i < 4; i++) {
            float a = columns[i + 1].sum - columns[i].sum, b = columns[i + 2].sum - columns[i + 1].sum;
            float between = fmaf(a, a + b, b * b);
            float within = columns[i].spread + columns[i + 1].spread + columns[i + 2].spread;
            v[i] = sqrt_approx(fmaf(1.0f / 3.0f, between, within)) * CONTRAST;
        }
        put(12, v);
        for (int i = 0; i < 4; i++) {
            float gx = columns[i + 2].smooth - columns[i].smooth;
            float gy = fmaf(2.0f, columns[i + 1].slope, columns[i].slope) + columns[i + 2].slope;
            v[i] = gx * GRADIENT;
            w[i] = gy * GRADIENT;
            z[i] = sqrt_approx(fmaf(gx, gx, gy * gy)) * GRADIENT;
        }
        put(6, v);
        put(7, w);
        put(8, z);
        float row_y = scale(y, scale_y), row_e = (row_y - fixation_y) * nearness;
        for (int i = 0; i < 4; i++) {
            v[i] = row_y;
            w[i] = column_x[i];
            z[i] = sqrt_approx(fmaf(row_e, row_e, column_e[i] * column_e[i]));
        }
        put(9, v);
        put(10, w);
        put(11, z);
        for (int i = 0; i < 6; i++) row[i] = below[i];
    }
}
