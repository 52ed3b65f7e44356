// Put blobs together: offsets, the compact copy in index order, checksums; and hashes of plain pieces.
//
// Compiled once for all shapes of words. One block of 256 threads a blob: it copies and hashes in one pass.
#include "xxh3.cuh"

// offsets[i] = sum of the lengths before blob i; offsets[count] = the total. One block of 1024 threads.
extern "C" __global__ void __launch_bounds__(1024) s4_offsets(const Blob* blobs, u64* offsets, u32 count) {
    __shared__ u64 sums[32];
    const u32 tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
    u64 done = 0;
    for (u32 first = 0; first < count; first += 1024) {
        const u32 i = first + tid;
        const u64 mine = i < count ? blobs[i].length : 0;
        u64 upto = mine;
        for (int d = 1; d < 32; d <<= 1) {
            const u64 o = __shfl_up_sync(ALL_LANES, upto, d);
            if (lane >= (u32)d) upto += o;
        }
        if (lane == 31) sums[warp] = upto;
        __syncthreads();
        u64 before = done, total = 0;
        for (u32 w = 0; w < 32; ++w) {
            if (w < warp) before += sums[w];
            total += sums[w];
        }
        if (i < count) offsets[i] = before + upto - mine;
        done += total;
        __syncthreads();
    }
    if (tid == 0) offsets[count] = done;
}

// Finds the scratch address of a place in a blob; a rans blob lies there in 1 + nsub pieces.
struct Pieces {
    const u8* slot;
    const u32* dir;
    u64 shift;   // scratch address minus place, within the current piece
    u32 end;     // of the current piece
    u32 length, next, apart;

    __device__ __forceinline__ void start(const u8* at, const Blob& b, u32 n, u32 sub) {
        slot = at;
        shift = (u64)at;
        end = length = b.length;
        next = 0;
        if (b.codec != RANS) return;
        end = *reinterpret_cast<const u32*>(at + HEAD_LENGTH_AT);
        dir = reinterpret_cast<const u32*>(at + end - pad16(4 * pieces_of(n, sub)));
        apart = sub_stride(n, sub);
    }
    __device__ __forceinline__ const u8* find(u32 place) {
        while (place >= end && end < length) {
            shift = (u64)(slot + HEAD_BYTES) + (u64)next * apart - end;
            const u32 d = dir[next++];
            end += 128 + pad16(2 * (d & 0xffffff)) + pad16(4 * (d >> 24));
        }
        return reinterpret_cast<const u8*>(shift + place);
    }
};

// One block a blob. Copies blob i from scratch to out + offsets[i] and fills in its checksum.
extern "C" __global__ void __launch_bounds__(THREADS)
s4_seal(const Chunk* chunks, Blob* blobs, const u64* offsets, u8* out, u32 planes) {
    __shared__ HashShared shared;
    const u32 i = blockIdx.x;
    const Blob b = blobs[i];
    const Chunk c = chunks[i / planes];
    Pieces from;
    from.start(reinterpret_cast<const u8*>(c.scratch) + (u64)(i % planes) * c.stride * 16, b, c.n, c.sub);
    u8* to = out + offsets[i];
    u64 hash = 0;
    if (b.length > MID_SIZE) {
        BlockHash<true> h(shared);
        hash = h.run(from, to, b.length);
    } else if (threadIdx.x < 32) {
        const u32 place = 16 * threadIdx.x;
        if (place < b.length) *reinterpret_cast<uint4*>(to + place) = *reinterpret_cast<const uint4*>(from.find(place));
        __syncwarp();
        if (threadIdx.x == 0) hash = xxh3_short(to, b.length);
    }
    if (threadIdx.x == 0) blobs[i].checksum = hash;
}

// XXH3-64 of n bytes at p, 16-byte aligned, by a block; the result is in thread 0.
__device__ __forceinline__ u64 hash_plain(HashShared& shared, const u8* p, u32 n) {
    if (n <= MID_SIZE) return threadIdx.x == 0 ? xxh3_short(p, n) : 0;
    BlockHash<false> h(shared);
    Plain from = {p};
    return h.run(from, nullptr, n);
}

// One block a blob: status[chunk] = fault | plane << 8 where a blob's checksum is not the one recorded.
extern "C" __global__ void __launch_bounds__(THREADS)
s4_check(const Blob* blobs, const u64* offsets, const u8* stream, u32* status, u32 planes, u32 fault) {
    __shared__ HashShared shared;
    const u32 i = blockIdx.x;
    const u64 hash = hash_plain(shared, stream + offsets[i], blobs[i].length);
    if (threadIdx.x == 0 && hash != blobs[i].checksum) atomicMax(&status[i / planes], fault | (i % planes) << 8);
}

struct Span {
    u64 address;  // 16-byte aligned
    u64 bytes;
    u64 first;    // number of its first piece among all pieces
};

// One block a piece of 64 KiB: hashes[i] = XXH3-64 of piece i of the spans laid one after the other.
extern "C" __global__ void __launch_bounds__(THREADS)
s4_pieces(const Span* spans, u64* hashes, u32 count) {
    __shared__ HashShared shared;
    constexpr u64 size = 65536;
    const u64 i = blockIdx.x;
    u32 low = 0, high = count;
    while (high - low > 1) {
        const u32 mid = (low + high) / 2;
        if (spans[mid].first <= i) low = mid;
        else high = mid;
    }
    const u64 at = (i - spans[low].first) * size, left = spans[low].bytes - at;
    const u8* p = reinterpret_cast<const u8*>(spans[low].address) + at;
    const u64 hash = hash_plain(shared, p, (u32)(left < size ? left : size));
    if (threadIdx.x == 0) hashes[i] = hash;
}
