#include "plot/png.h"

#include <dlfcn.h>

#include <cmath>
#include <memory>
#include <span>
#include <vector>

#include "core/error.h"
#include "io/atomic_file.h"

namespace qdelta::plot {
namespace {

constexpr const char* kRsvg = "librsvg-2.so.2";
constexpr const char* kCairo = "libcairo.so.2";
constexpr int kCairoArgb32 = 0;  // CAIRO_FORMAT_ARGB32
constexpr double kMostPixels = 32767;

// What is used of the two libraries' C interfaces, which have been the same for many years. Objects are opaque.
struct RsvgRectangle {
  double x, y, width, height;
};
using CairoWrite = int (*)(void* closure, const unsigned char* data, unsigned int length);

struct Libraries {
  void* (*rsvg_handle_new_from_data)(const unsigned char*, std::size_t, void**) = nullptr;
  int (*rsvg_handle_get_intrinsic_size_in_pixels)(void*, double*, double*) = nullptr;
  int (*rsvg_handle_render_document)(void*, void*, const RsvgRectangle*, void**) = nullptr;
  void (*g_object_unref)(void*) = nullptr;
  void* (*cairo_image_surface_create)(int, int, int) = nullptr;
  int (*cairo_surface_status)(void*) = nullptr;
  int (*cairo_surface_write_to_png_stream)(void*, CairoWrite, void*) = nullptr;
  void (*cairo_surface_destroy)(void*) = nullptr;
  void* (*cairo_create)(void*) = nullptr;
  void (*cairo_destroy)(void*) = nullptr;
  std::string missing;  // why it cannot be used; "": it can

  Libraries() {
    // Never closed: they keep threads and caches that do not survive it.
    void* rsvg = ::dlopen(kRsvg, RTLD_NOW | RTLD_LOCAL);
    void* cairo = rsvg == nullptr ? nullptr : ::dlopen(kCairo, RTLD_NOW | RTLD_LOCAL);
    if (cairo == nullptr) {
      const char* reason = ::dlerror();
      missing = reason == nullptr ? "the library cannot be loaded" : reason;
      return;
    }
    const auto find = [this](void* library, const char* name, auto& function) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
      if (function == nullptr) missing = std::string("the library has no ") + name;
    };
    find(rsvg, "rsvg_handle_new_from_data", rsvg_handle_new_from_data);
    find(rsvg, "rsvg_handle_get_intrinsic_size_in_pixels", rsvg_handle_get_intrinsic_size_in_pixels);
    find(rsvg, "rsvg_handle_render_document", rsvg_handle_render_document);
    find(rsvg, "g_object_unref", g_object_unref);
    find(cairo, "cairo_image_surface_create", cairo_image_surface_create);
    find(cairo, "cairo_surface_status", cairo_surface_status);
    find(cairo, "cairo_surface_write_to_png_stream", cairo_surface_write_to_png_stream);
    find(cairo, "cairo_surface_destroy", cairo_surface_destroy);
    find(cairo, "cairo_create", cairo_create);
    find(cairo, "cairo_destroy", cairo_destroy);
  }
};

const Libraries& libraries() {
  static const Libraries all;
  return all;
}

int append(void* closure, const unsigned char* data, unsigned int length) {
  auto& bytes = *static_cast<std::vector<unsigned char>*>(closure);
  bytes.insert(bytes.end(), data, data + length);
  return 0;
}

using Object = std::unique_ptr<void, void (*)(void*)>;

}  // namespace

bool can_write_png() { return libraries().missing.empty(); }

void write_png(std::string_view svg, const std::string& path, double scale) {
  const Libraries& l = libraries();
  if (!l.missing.empty()) {
    fail(Status::unsupported, "cannot draw {}: librsvg (Debian: librsvg2-2) is needed for PNG pictures: {}", path,
         l.missing);
  }
  const Object drawing(
      l.rsvg_handle_new_from_data(reinterpret_cast<const unsigned char*>(svg.data()), svg.size(), nullptr),
      l.g_object_unref);
  double width = 0;
  double height = 0;
  require(drawing != nullptr && l.rsvg_handle_get_intrinsic_size_in_pixels(drawing.get(), &width, &height) != 0,
          "cannot draw {}: the SVG is none, or has no size", path);
  width = std::ceil(width * scale);
  height = std::ceil(height * scale);
  require(width >= 1 && height >= 1 && width <= kMostPixels && height <= kMostPixels, "cannot draw {}: {} x {} pixels",
          path, width, height);
  const Object surface(l.cairo_image_surface_create(kCairoArgb32, static_cast<int>(width), static_cast<int>(height)),
                       l.cairo_surface_destroy);
  const Object context(l.cairo_create(surface.get()), l.cairo_destroy);
  const RsvgRectangle whole{0, 0, width, height};
  require(l.rsvg_handle_render_document(drawing.get(), context.get(), &whole, nullptr) != 0 &&
              l.cairo_surface_status(surface.get()) == 0,
          "cannot draw {}: librsvg refuses the SVG", path);
  std::vector<unsigned char> bytes;
  require(l.cairo_surface_write_to_png_stream(surface.get(), append, &bytes) == 0, "cannot make a PNG for {}", path);
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(bytes)));
  file.commit();
}

}  // namespace qdelta::plot
