//! Makes thumbnails of PNG images: work for the processor, and an artifact.
//!
//! ```text
//! cargo run -p airlock-worker --example thumbnails
//! airlock job submit job.image.thumbnail --wait \
//!   --payload "{\"png\":\"$(base64 -w0 photo.png)\",\"width\":128}"
//! ```
//!
//! What to take from it: shrinking an image does not await, so it runs where it may block;
//! it looks at the cancellation token between lines, since nobody can end it otherwise;
//! and a handler that needs much memory has a smaller limit than its worker.

use std::io::Cursor;
use std::time::Duration;

use airlock_worker::{Artifact, HandlerOptions, JobContext, JobError, Worker, WorkerError};
use anyhow::{Context, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

/// An image of more pixels is refused before it is unpacked.
const MOST_PIXELS: u64 = 50_000_000;

#[derive(Deserialize)]
struct Resize {
    /// The image, in base64.
    png: String,
    width: u32,
}

#[derive(Serialize)]
struct Thumb {
    image: Artifact,
    width: u32,
    height: u32,
}

/// Eight bits for each of red, green, blue and transparency.
struct Picture {
    width: u32,
    height: u32,
    pixels: Vec<u8>,
}

async fn thumbnail(ctx: JobContext, resize: Resize) -> Result<Thumb, JobError> {
    if !(1..=4_096).contains(&resize.width) {
        return Err(JobError::fatal("bad_width", "a width between 1 and 4096"));
    }
    let png = STANDARD
        .decode(&resize.png)
        .map_err(|e| JobError::fatal("bad_image", format!("not base64: {e}")))?;
    let token = ctx.cancellation_token();
    let small = tokio::task::spawn_blocking(move || {
        let picture = decode_png(&png)?;
        let small = shrink(&picture, resize.width, &token)?;
        Ok::<_, anyhow::Error>((encode_png(&small)?, small.width, small.height))
    })
    .await?;
    // What cannot be read now cannot be read at another try either.
    let (png, width, height) = small.map_err(|e| JobError::fatal("bad_image", format!("{e:#}")))?;
    ctx.progress(90, "resized");
    let image = ctx.artifact("thumbnail.png", "image/png", png).await?;
    Ok(Thumb {
        image,
        width,
        height,
    })
}

fn decode_png(png: &[u8]) -> anyhow::Result<Picture> {
    let mut decoder = png::Decoder::new(Cursor::new(png));
    decoder.set_transformations(
        png::Transformations::normalize_to_color8() | png::Transformations::ALPHA,
    );
    let mut reader = decoder.read_info().context("not a PNG image")?;
    let (width, height) = reader.info().size();
    ensure!(
        u64::from(width) * u64::from(height) <= MOST_PIXELS,
        "{width} by {height} pixels are too many"
    );
    let size = reader.output_buffer_size().context("too large")?;
    let mut raw = vec![0; size];
    let frame = reader.next_frame(&mut raw).context("a broken image")?;
    raw.truncate(frame.buffer_size());
    let pixels = match frame.color_type {
        png::ColorType::Rgba => raw,
        png::ColorType::GrayscaleAlpha => raw
            .chunks_exact(2)
            .flat_map(|p| [p[0], p[0], p[0], p[1]])
            .collect(),
        other => anyhow::bail!("images of {other:?} are not supported"),
    };
    Ok(Picture {
        width,
        height,
        pixels,
    })
}

/// Each pixel is the mean of those it stands for.
fn shrink(picture: &Picture, width: u32, token: &CancellationToken) -> anyhow::Result<Picture> {
    let width = width.min(picture.width);
    let height = (u64::from(picture.height) * u64::from(width) / u64::from(picture.width)).max(1);
    let height = u32::try_from(height)?;
    let mut pixels = Vec::with_capacity(width as usize * height as usize * 4);
    for y in 0..height {
        ensure!(!token.is_cancelled(), "cancelled");
        let rows = source_range(y, height, picture.height);
        for x in 0..width {
            let columns = source_range(x, width, picture.width);
            let mut sum = [0_u64; 4];
            let mut count = 0;
            for row in rows.clone() {
                for column in columns.clone() {
                    let at = (row as usize * picture.width as usize + column as usize) * 4;
                    let pixel = picture.pixels.get(at..at + 4).context("a short image")?;
                    for (sum, value) in sum.iter_mut().zip(pixel) {
                        *sum += u64::from(*value);
                    }
                    count += 1;
                }
            }
            for sum in sum {
                pixels.push(u8::try_from(sum / count)?);
            }
        }
    }
    Ok(Picture {
        width,
        height,
        pixels,
    })
}

/// Which of `from` lines become line `n` of `to`; at least one.
fn source_range(n: u32, to: u32, from: u32) -> std::ops::Range<u32> {
    let edge =
        |n: u32| u32::try_from(u64::from(n) * u64::from(from) / u64::from(to)).unwrap_or(from);
    edge(n)..edge(n + 1).max(edge(n) + 1)
}

fn encode_png(picture: &Picture) -> anyhow::Result<Vec<u8>> {
    let mut png = Vec::new();
    let mut encoder = png::Encoder::new(&mut png, picture.width, picture.height);
    encoder.set_color(png::ColorType::Rgba);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&picture.pixels)?;
    writer.finish()?;
    Ok(png)
}

#[tokio::main]
async fn main() -> Result<(), WorkerError> {
    tracing_subscriber::fmt().init();
    let careful = HandlerOptions::new()
        .max_parallel(4)
        .timeout(Duration::from_secs(60));
    Worker::builder("example-thumbnails")
        .on_with("job.image.thumbnail", careful, thumbnail)
        .run()
        .await
}
